/* The part of an image that a window covers, and what its sum is divided by. */
struct part {
    int top, bottom, left, right;
    float divisor;
};

static struct part covered(const struct frame *f, int border, int divisor, int r, int c)
{
    struct part p;
    const int row = r * f->row_stride - f->row_padding;
    const int column = c * f->column_stride - f->column_padding;
    int below = row + f->kernel_rows, beyond = column + f->kernel_columns;

    if (below > f->rows + f->row_padding) {
        below = f->rows + f->row_padding;
    }
    if (beyond > f->columns + f->column_padding) {
        beyond = f->columns + f->column_padding;
    }
    p.top = row > 0 ? row : 0;
    p.left = column > 0 ? column : 0;
    p.bottom = below < f->rows ? below : f->rows;
    p.right = beyond < f->columns ? beyond : f->columns;
    p.divisor = (float)((p.bottom - p.top) * (p.right - p.left));
    if (border) {
        p.divisor = (float)((below - row) * (beyond - column));
    }
    if (divisor > 0) {
        p.divisor = (float)divisor;
    }
    return p;
}
