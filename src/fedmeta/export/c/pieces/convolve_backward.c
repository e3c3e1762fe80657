/* Given g = dL/dy: adds dL/dw and dL/db to their sums where wanted, and writes dL/dx where wanted. */
static void convolve_backward(const struct frame *f, const float *weight, const float *x,
                              const float *g, float *by_weight, float *by_bias, float *by_x)
{
    const int depth = f->channels / f->groups, width = f->out_channels / f->groups;
    const int taps = f->kernel_rows * f->kernel_columns, pixels = f->rows * f->columns;

    for (int i = 0; by_x != NULL && i < f->channels * pixels; i++) {
        by_x[i] = 0.0f;
    }
    for (int o = 0; o < f->out_channels; o++) {
        const int first = o / width * depth * pixels;
        for (int r = 0; r < f->out_rows; r++) {
            for (int c = 0; c < f->out_columns; c++) {
                const float slope = *g++;
                int w = o * depth * taps;
                if (by_bias != NULL) {
                    by_bias[o] += slope;
                }
                for (int d = 0; d < depth; d++) {
                    for (int i = 0; i < f->kernel_rows; i++) {
                        const int row = r * f->row_stride - f->row_padding + i * f->row_dilation;
                        for (int j = 0; j < f->kernel_columns; j++, w++) {
                            const int column =
                                c * f->column_stride - f->column_padding + j * f->column_dilation;
                            const int place = first + d * pixels + row * f->columns + column;
                            if (row < 0 || row >= f->rows || column < 0 || column >= f->columns) {
                                continue;
                            }
                            if (by_weight != NULL) {
                                by_weight[w] += slope * x[place];
                            }
                            if (by_x != NULL) {
                                by_x[place] += slope * weight[w];
                            }
                        }
                    }
                }
            }
        }
    }
}
