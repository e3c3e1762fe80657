/* Rows of numbers with mean 0 and variance 1; number i has its scale at (i / spread) mod scales. */
static void normalise(int rows, int size, int spread, int scales, float epsilon,
                      const float *weight, const float *bias, const float *x, float *y)
{
    for (int r = 0; r < rows; r++) {
        const float mean = mean_of(size, x + r * size);
        float variance = 0.0f;
        for (int i = r * size; i < (r + 1) * size; i++) {
            variance += (x[i] - mean) * (x[i] - mean) / (float)size;
        }
        for (int i = r * size; i < (r + 1) * size; i++) {
            const int s = i / spread % scales;
            const float plain = (x[i] - mean) / sqrtf(variance + epsilon);
            y[i] = (weight != NULL ? weight[s] : 1.0f) * plain + (bias != NULL ? bias[s] : 0.0f);
        }
    }
}
