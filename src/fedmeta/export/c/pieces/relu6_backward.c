/* dL/dx from y = relu6(x) and g = dL/dy, in place of g. */
static void relu6_backward(int count, const float *y, float *g)
{
    for (int i = 0; i < count; i++) {
        g[i] *= y[i] > 0.0f && y[i] < 6.0f ? 1.0f : 0.0f;
    }
}
