/* dL/dx: every gradient in equal shares over its window. */
static void pool_average_backward(const struct frame *f, int border, int divisor, const float *g,
                                  float *by_x)
{
    const int pixels = f->rows * f->columns;
    for (int i = 0; i < f->channels * pixels; i++) {
        by_x[i] = 0.0f;
    }
    for (int d = 0; d < f->channels; d++, by_x += pixels) {
        for (int r = 0; r < f->out_rows; r++) {
            for (int c = 0; c < f->out_columns; c++) {
                const struct part p = covered(f, border, divisor, r, c);
                const float share = *g++ / p.divisor;
                for (int i = p.top; i < p.bottom; i++) {
                    for (int j = p.left; j < p.right; j++) {
                        by_x[i * f->columns + j] += share;
                    }
                }
            }
        }
    }
}
