/* y = W x + b in whole numbers: sums of products, then a scale and an offset for every output. */
static void linear_bytes(int rows, int inputs, int outputs, const int8_t *weight,
                         const float *scale, const float *offset, int zero, const int8_t *x,
                         int8_t *y)
{
    for (int r = 0; r < rows; r++) {
        for (int o = 0; o < outputs; o++) {
            const int8_t *w = weight + (size_t)o * inputs;
            int32_t sum = 0;
            for (int i = 0; i < inputs; i++) {
                sum += w[i] * (x[r * inputs + i] - zero);
            }
            y[r * outputs + o] = rounded((float)sum * scale[o] + offset[o]);
        }
    }
}
