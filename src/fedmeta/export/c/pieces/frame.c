/* How a window moves over an image. A series is an image of one row. */
struct frame {
    int channels, rows, columns;             /* of the input */
    int out_channels, out_rows, out_columns; /* of the output */
    int kernel_rows, kernel_columns;
    int row_stride, column_stride;
    int row_padding, column_padding; /* above and to the left */
    int row_dilation, column_dilation;
    int groups; /* independent parts of the channels */
};
