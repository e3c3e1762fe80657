/* The cross-entropy of one sample. */
static double loss(const double *z, int label)
{
    double most = z[0], sum = 0;
    for (int i = 1; i < FM_OUTPUTS; i++) {
        most = z[i] > most ? z[i] : most;
    }
    for (int i = 0; i < FM_OUTPUTS; i++) {
        sum += exp(z[i] - most);
    }
    return CLASS_WEIGHT(label) * (log(sum) + most - z[label]);
}
