/* The mean of some rows of numbers. */
static void mean_rows(int rows, int count, const float *x, float *y)
{
    for (int i = 0; i < count; i++) {
        y[i] = 0.0f;
        for (int r = 0; r < rows; r++) {
            y[i] += x[r * count + i];
        }
        y[i] /= (float)rows;
    }
}
