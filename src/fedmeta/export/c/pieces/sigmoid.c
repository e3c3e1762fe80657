/* 1 / (1 + e^-x), in place. */
static void sigmoid(int count, float *x)
{
    for (int i = 0; i < count; i++) {
        x[i] = 1.0f / (1.0f + expf(-x[i]));
    }
}
