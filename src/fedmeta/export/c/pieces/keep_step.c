/* A parameter of the head less what the samples move it by: each by its own multiple of features. */
static float moved(const float *from, int i, int c, int k, double pull)
{
    double value = from[i] - pull * ((double)from[i] - meta[i]);
    if (k < 0) { /* of the bias */
        return (float)(value - shift[c]);
    }
    for (int s = 0; s < samples; s++) {
        value -= push[s][c] * kept[s][k];
    }
    return (float)value;
}

static int move_head(const float *from)
{
    for (int pass = 0; pass < 2; pass++) { /* check, write */
        for (int c = 0; c < FM_OUTPUTS; c++) {
            for (int k = HAS_BIAS ? -1 : 0; k < FEATURES; k++) {
                const int i = k < 0 ? BIAS + c : WEIGHT + c * FEATURES + k;
                const float next = moved(from, i, c, k, PULL * (k < 0 ? BIAS_STEP : WEIGHT_STEP));
                if (pass == 1) {
                    theta[i] = next;
                } else if (!is_finite(next)) {
                    return FM_NOT_FINITE;
                }
            }
        }
    }
    return FM_OK;
}

/* One step on the samples outside a part (-1: on all), from how they are answered now. */
static void add_pushes(int part, double table[][FM_OUTPUTS])
{
    double sum[FM_OUTPUTS] = {0}, slopes[FM_OUTPUTS];
    int rest = 0;
    for (int s = 0; s < samples; s++) {
        rest += s % FOLDS != part;
    }
    for (int s = 0; s < samples; s++) {
        if (s % FOLDS == part) {
            continue;
        }
        loss_slope(table[s], labels[s], slopes);
        for (int c = 0; c < FM_OUTPUTS; c++) {
            push[s][c] = (1 - PULL * WEIGHT_STEP) * push[s][c] + WEIGHT_STEP * slopes[c] / rest;
            sum[c] += slopes[c] / rest;
        }
    }
    for (int c = 0; HAS_BIAS && c < FM_OUTPUTS; c++) {
        shift[c] = (1 - PULL * BIAS_STEP) * shift[c] + BIAS_STEP * sum[c];
    }
}

static void no_pushes(void)
{
    memset(push, 0, sizeof push);
    memset(shift, 0, sizeof shift);
}
