/* A parameter after a step: theta - a (gradient + pull (theta - meta)). */
static float stepped(int i)
{
    const float gradient = sums[i] / (float)samples + PULL * (theta[i] - meta[i]);
    return theta[i] - step_size(i) * gradient;
}

int fm_adapt_step(void)
{
    if (samples == 0) {
        return FM_NO_SAMPLES;
    }
    for (int i = 0; i < FM_PARAMETERS; i++) {
        if (!is_finite(stepped(i))) {
            return FM_NOT_FINITE;
        }
    }
    for (int i = 0; i < FM_PARAMETERS; i++) {
        theta[i] = stepped(i);
    }
    fm_adapt_begin();
    return FM_OK;
}
