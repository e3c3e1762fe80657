/* dL/dx from y = sigmoid(x) and g = dL/dy, in place of g. */
static void sigmoid_backward(int count, const float *y, float *g)
{
    for (int i = 0; i < count; i++) {
        g[i] *= y[i] * (1.0f - y[i]);
    }
}
