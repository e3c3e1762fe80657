int fm_adapt_step(void)
{
    if (samples == 0) {
        return FM_NO_SAMPLES;
    }
    const int status = prototype_head();
    if (status == FM_OK) {
        fm_adapt_begin();
    }
    return status;
}
