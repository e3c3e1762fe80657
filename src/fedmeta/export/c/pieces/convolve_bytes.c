/* Some output channels of a convolution in whole numbers: sums of products, then a scale and an
   offset for every channel. */
static void convolve_bytes(const struct frame *f, int from, int to, const int8_t *weight,
                           const float *scale, const float *offset, int zero, const int8_t *x,
                           int8_t *y)
{
    const int depth = f->channels / f->groups, width = f->out_channels / f->groups;
    const int taps = f->kernel_rows * f->kernel_columns, pixels = f->rows * f->columns;
    const int apart = f->column_dilation;

    for (int o = from; o < to; o++) {
        const int8_t *own = weight + o * depth * taps, *given = x + o / width * depth * pixels;
        for (int r = 0; r < f->out_rows; r++) {
            const int row = r * f->row_stride - f->row_padding;
            int top, left, bottom = inside(row, f->row_dilation, f->kernel_rows, f->rows, &top);
            for (int c = 0; c < f->out_columns; c++) {
                const int column = c * f->column_stride - f->column_padding;
                const int right = inside(column, apart, f->kernel_columns, f->columns, &left);
                int32_t sum = 0;
                for (int d = 0; d < depth; d++) {
                    for (int i = top; i < bottom; i++) {
                        const int8_t *w = own + d * taps + i * f->kernel_columns;
                        const int line =
                            d * pixels + (row + i * f->row_dilation) * f->columns + column;
                        for (int j = left; j < right; j++) {
                            sum += w[j] * (given[line + j * apart] - zero);
                        }
                    }
                }
                *y++ = rounded((float)sum * scale[o] + offset[o]);
            }
        }
    }
}
