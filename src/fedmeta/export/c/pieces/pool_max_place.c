/* Where in a channel the largest number of a window is, the first among equals. */
static int place_of_maximum(const struct frame *f, const NUMBER *pixels, int r, int c)
{
    int best = -1;
    for (int i = 0; i < f->kernel_rows; i++) {
        const int row = r * f->row_stride - f->row_padding + i * f->row_dilation;
        for (int j = 0; j < f->kernel_columns; j++) {
            const int column = c * f->column_stride - f->column_padding + j * f->column_dilation;
            if (row >= 0 && row < f->rows && column >= 0 && column < f->columns) {
                const int place = row * f->columns + column;
                if (best < 0 || pixels[place] > pixels[best]) {
                    best = place;
                }
            }
        }
    }
    return best;
}
