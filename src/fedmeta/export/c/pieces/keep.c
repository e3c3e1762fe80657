/* Samples are kept as features, which adaptation does not change. */
void fm_adapt_begin(void)
{
    samples = 0;
}

int fm_adapt_add(const float *input, LABEL label)
{
    const int status = samples < FM_SAMPLES ? taken(input, label) : FM_FULL;
    if (status == FM_OK) {
        memcpy(kept[samples], features, sizeof kept[0]);
        KEEP_LABEL(samples, label);
        samples++;
    }
    return status;
}
