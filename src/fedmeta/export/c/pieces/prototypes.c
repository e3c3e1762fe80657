/* A head of class means m_c around their centre m: W_c = 2 t (m_c - m), b_c = t (|m|^2 - |m_c|^2),
   with t = sharpness / the mean squared distance of two means. Classes without samples stay behind.
   Where the learned head is kept, this is added to it. */
static double tightness(double variance, double centre, int present)
{
    const double rounding = 8 * 1.1920929e-7;
    const double pairs = 2.0 * present / (present > 1 ? present - 1 : 1);
    return variance > rounding * rounding * centre ? SHARPNESS / (pairs * variance) : 1.0;
}

static int prototype_head(void)
{
    double lengths[FM_OUTPUTS], along[FM_OUTPUTS], whole = 0, variance = 0, t = 0;
    int present = 0;

    for (int c = 0; c < FM_OUTPUTS; c++) {
        present += class_count(c) > 0;
        lengths[c] = along[c] = 0;
    }
    for (int pass = 0; pass < 3; pass++) { /* measure, check, write */
        for (int k = 0; k < FEATURES; k++) {
            double means[FM_OUTPUTS], centre = 0;
            for (int c = 0; c < FM_OUTPUTS; c++) {
                means[c] = class_count(c) > 0 ? class_mean(c, k) : 0;
                centre += means[c] / present;
            }
            whole += pass == 0 ? centre * centre : 0;
            for (int c = 0; c < FM_OUTPUTS; c++) {
                const double away = class_count(c) > 0 ? means[c] - centre : 0;
                const float weight = (float)(2 * t * away + KEPT(WEIGHT + c * FEATURES + k));
                if (pass == 0) {
                    lengths[c] += away * away;
                    along[c] += away * centre;
                } else if (pass == 2) {
                    theta[WEIGHT + c * FEATURES + k] = weight;
                } else if (!is_finite(weight)) {
                    return FM_NOT_FINITE;
                }
            }
        }
        for (int c = 0; pass == 0 && c < FM_OUTPUTS; c++) {
            variance += lengths[c] / present;
        }
        t = tightness(variance, whole, present);
        for (int c = 0; c < FM_OUTPUTS; c++) {
            const double own = -t * (lengths[c] + 2 * along[c]);
            const double made = class_count(c) > 0 ? own : -t * variance - BEHIND;
            const float bias = (float)(made + KEPT(BIAS + c));
            if (pass == 2) {
                theta[BIAS + c] = bias;
            } else if (!is_finite(bias)) {
                return FM_NOT_FINITE;
            }
        }
    }
    return FM_OK;
}
