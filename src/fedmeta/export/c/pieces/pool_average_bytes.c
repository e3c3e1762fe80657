/* The mean of every window, in the unit of what it is given. */
static void pool_average_bytes(const struct frame *f, int channels, int border, int divisor,
                               int zero, const int8_t *x, int8_t *y)
{
    for (int d = 0; d < channels; d++, x += f->rows * f->columns) {
        for (int r = 0; r < f->out_rows; r++) {
            for (int c = 0; c < f->out_columns; c++) {
                const struct part p = covered(f, border, divisor, r, c);
                int32_t sum = 0;
                for (int i = p.top; i < p.bottom; i++) {
                    for (int j = p.left; j < p.right; j++) {
                        sum += x[i * f->columns + j] - zero;
                    }
                }
                *y++ = rounded((float)sum / p.divisor + (float)zero);
            }
        }
    }
}
