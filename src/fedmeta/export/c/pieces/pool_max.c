/* The largest number of every window. */
static void pool_max(const struct frame *f, int channels, const NUMBER *x, NUMBER *y)
{
    for (int d = 0; d < channels; d++, x += f->rows * f->columns) {
        for (int r = 0; r < f->out_rows; r++) {
            for (int c = 0; c < f->out_columns; c++) {
                *y++ = x[place_of_maximum(f, x, r, c)];
            }
        }
    }
}
