/* tanh x, in place. */
static void hyperbolic(int count, float *x)
{
    for (int i = 0; i < count; i++) {
        x[i] = tanhf(x[i]);
    }
}
