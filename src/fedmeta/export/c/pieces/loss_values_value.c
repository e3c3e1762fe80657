/* The mean squared error of one sample. */
static double loss(const double *z, const float *label)
{
    double sum = 0;
    for (int i = 0; i < FM_OUTPUTS; i++) {
        sum += (z[i] - label[i]) * (z[i] - label[i]) / FM_OUTPUTS;
    }
    return sum;
}
