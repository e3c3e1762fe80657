/* x above 0, else 0, in place. */
static void relu(int count, float *x)
{
    for (int i = 0; i < count; i++) {
        x[i] = x[i] > 0.0f ? x[i] : 0.0f;
    }
}
