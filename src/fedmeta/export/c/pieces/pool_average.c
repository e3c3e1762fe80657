/* The mean of every window; `border`: padding counts, `divisor`: what sums are divided by instead. */
static void pool_average(const struct frame *f, int channels, int border, int divisor,
                         const float *x, float *y)
{
    for (int d = 0; d < channels; d++, x += f->rows * f->columns) {
        for (int r = 0; r < f->out_rows; r++) {
            for (int c = 0; c < f->out_columns; c++) {
                const struct part p = covered(f, border, divisor, r, c);
                float sum = 0.0f;
                for (int i = p.top; i < p.bottom; i++) {
                    for (int j = p.left; j < p.right; j++) {
                        sum += x[i * f->columns + j];
                    }
                }
                *y++ = sum / p.divisor;
            }
        }
    }
}
