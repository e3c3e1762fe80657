/* CRC-32 of some bytes, after that of the bytes before them. */
static uint32_t crc32(uint32_t crc, const void *bytes, size_t count)
{
    const unsigned char *byte = bytes;
    crc = ~crc;
    while (count-- > 0) {
        crc ^= *byte++;
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1u ? 0xedb88320u : 0u);
        }
    }
    return ~crc;
}
