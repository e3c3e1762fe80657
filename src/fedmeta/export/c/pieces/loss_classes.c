/* dL/dz of the cross-entropy of one sample: softmax(z) less 1 at its class. */
static void loss_slope(const REAL *z, int label, REAL *slope)
{
    REAL most = z[0], sum = 0;
    for (int i = 1; i < FM_OUTPUTS; i++) {
        most = z[i] > most ? z[i] : most;
    }
    for (int i = 0; i < FM_OUTPUTS; i++) {
        slope[i] = EXP(z[i] - most);
        sum += slope[i];
    }
    for (int i = 0; i < FM_OUTPUTS; i++) {
        slope[i] = CLASS_WEIGHT(label) * (slope[i] / sum - (i == label ? 1 : 0));
    }
}
