/* x above 0, slope (e^x - 1) below, in place. */
static void elu(int count, float slope, float *x)
{
    for (int i = 0; i < count; i++) {
        x[i] = x[i] > 0.0f ? x[i] : slope * expm1f(x[i]);
    }
}
