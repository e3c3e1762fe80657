/* dL/dz of the mean squared error of one sample. */
static void loss_slope(const REAL *z, const float *label, REAL *slope)
{
    for (int i = 0; i < FM_OUTPUTS; i++) {
        slope[i] = 2 * (z[i] - label[i]) / FM_OUTPUTS;
    }
}
