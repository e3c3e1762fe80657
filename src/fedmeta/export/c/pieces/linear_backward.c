/* Given g = dL/dy: adds dL/dW and dL/db to their sums where wanted, and writes dL/dx where wanted. */
static void linear_backward(int rows, int inputs, int outputs, const float *weight, const float *x,
                            const float *g, float *by_weight, float *by_bias, float *by_x)
{
    for (int i = 0; by_x != NULL && i < rows * inputs; i++) {
        by_x[i] = 0.0f;
    }
    for (int r = 0; r < rows; r++) {
        for (int o = 0; o < outputs; o++) {
            const float slope = g[r * outputs + o];
            if (by_bias != NULL) {
                by_bias[o] += slope;
            }
            for (int i = 0; by_weight != NULL && i < inputs; i++) {
                by_weight[o * inputs + i] += slope * x[r * inputs + i];
            }
            for (int i = 0; by_x != NULL && i < inputs; i++) {
                by_x[r * inputs + i] += slope * weight[o * inputs + i];
            }
        }
    }
}
