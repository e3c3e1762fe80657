/* Some output channels of a convolution. Weights are in the order out_channels,
   channels / groups, kernel_rows, kernel_columns. */
static void convolve(const struct frame *f, int from, int to, const float *weight,
                     const float *bias, const float *x, float *y)
{
    const int depth = f->channels / f->groups, width = f->out_channels / f->groups;
    const int taps = f->kernel_rows * f->kernel_columns, pixels = f->rows * f->columns;
    const int apart = f->column_dilation;

    for (int o = from; o < to; o++) {
        const float *own = weight + o * depth * taps, *given = x + o / width * depth * pixels;
        for (int r = 0; r < f->out_rows; r++) {
            const int row = r * f->row_stride - f->row_padding;
            int top, left, bottom = inside(row, f->row_dilation, f->kernel_rows, f->rows, &top);
            for (int c = 0; c < f->out_columns; c++) {
                const int column = c * f->column_stride - f->column_padding;
                const int right = inside(column, apart, f->kernel_columns, f->columns, &left);
                float sum = bias != NULL ? bias[o] : 0.0f;
                for (int d = 0; d < depth; d++) {
                    float part = 0.0f;
                    for (int i = top; i < bottom; i++) {
                        const float *w = own + d * taps + i * f->kernel_columns;
                        const int line =
                            d * pixels + (row + i * f->row_dilation) * f->columns + column;
                        for (int j = left; j < right; j++) {
                            part += w[j] * given[line + j * apart];
                        }
                    }
                    sum += part;
                }
                *y++ = sum;
            }
        }
    }
}
