/* With n = (x - mean) / s and h = weight g:  dL/dx = (h - mean(h) - n mean(h n)) / s. */
static void normalise_backward(int rows, int size, int spread, int scales, float epsilon,
                               const float *weight, const float *x, const float *g,
                               float *by_weight, float *by_bias, float *by_x)
{
    for (int r = 0; r < rows; r++) {
        const float mean = mean_of(size, x + r * size);
        float variance = 0.0f, level = 0.0f, tilt = 0.0f;
        for (int i = r * size; i < (r + 1) * size; i++) {
            variance += (x[i] - mean) * (x[i] - mean) / (float)size;
        }
        const float s = sqrtf(variance + epsilon);
        for (int i = r * size; i < (r + 1) * size; i++) {
            const int place = i / spread % scales;
            const float plain = (x[i] - mean) / s;
            const float h = weight != NULL ? weight[place] * g[i] : g[i];
            level += h / (float)size;
            tilt += h * plain / (float)size;
            if (by_weight != NULL) {
                by_weight[place] += g[i] * plain;
            }
            if (by_bias != NULL) {
                by_bias[place] += g[i];
            }
        }
        for (int i = r * size; by_x != NULL && i < (r + 1) * size; i++) {
            const float h = weight != NULL ? weight[i / spread % scales] * g[i] : g[i];
            by_x[i] = (h - level - (x[i] - mean) / s * tilt) / s;
        }
    }
}
