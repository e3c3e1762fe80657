/* y = W x + b for each of `rows` vectors x. Long sums lose digits: short ones are added up. */
static void linear(int rows, int inputs, int outputs, const float *weight, const float *bias,
                   const float *x, float *y)
{
    for (int r = 0; r < rows; r++) {
        for (int o = 0; o < outputs; o++) {
            const float *w = weight + (size_t)o * inputs;
            float sum = 0.0f;
            for (int i = 0; i < inputs;) {
                float part = 0.0f;
                for (const int end = inputs - i < 32 ? inputs : i + 32; i < end; i++) {
                    part += w[i] * x[r * inputs + i];
                }
                sum += part;
            }
            y[r * outputs + o] = bias != NULL ? sum + bias[o] : sum;
        }
    }
}
