/* x above 0, slope x below, in place. */
static void leaky_relu(int count, float slope, float *x)
{
    for (int i = 0; i < count; i++) {
        x[i] = x[i] > 0.0f ? x[i] : slope * x[i];
    }
}
