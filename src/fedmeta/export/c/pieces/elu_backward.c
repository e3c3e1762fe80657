/* dL/dx from y = elu(x) and g = dL/dy, in place of g. */
static void elu_backward(int count, float slope, const float *y, float *g)
{
    for (int i = 0; i < count; i++) {
        g[i] *= y[i] > 0.0f ? 1.0f : y[i] + slope;
    }
}
