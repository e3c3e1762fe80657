/* dL/dx: every gradient goes to the place of its maximum. */
static void pool_max_backward(const struct frame *f, const float *x, const float *g, float *by_x)
{
    const int pixels = f->rows * f->columns;
    for (int i = 0; i < f->channels * pixels; i++) {
        by_x[i] = 0.0f;
    }
    for (int d = 0; d < f->channels; d++, x += pixels, by_x += pixels) {
        for (int r = 0; r < f->out_rows; r++) {
            for (int c = 0; c < f->out_columns; c++) {
                by_x[place_of_maximum(f, x, r, c)] += *g++;
            }
        }
    }
}
