/* Whether a number is neither NaN nor infinite, also where the compiler assumes that all are. */
static int is_finite(float number)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return (bits & 0x7f800000u) != 0x7f800000u;
}

static int all_finite(const float *numbers, int count)
{
    for (int i = 0; i < count; i++) {
        if (!is_finite(numbers[i])) {
            return 0;
        }
    }
    return 1;
}
