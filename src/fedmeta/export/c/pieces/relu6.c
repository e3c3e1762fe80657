/* x between 0 and 6, in place. */
static void relu6(int count, float *x)
{
    for (int i = 0; i < count; i++) {
        x[i] = x[i] > 6.0f ? 6.0f : x[i] > 0.0f ? x[i] : 0.0f;
    }
}
