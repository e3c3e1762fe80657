/* The nearest whole number of 8 bits. */
static int8_t rounded(float number)
{
    if (!(number > -128.0f)) {
        return -128;
    }
    return number < 127.0f ? (int8_t)floorf(number + 0.5f) : 127;
}
