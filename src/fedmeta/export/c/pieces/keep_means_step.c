int fm_adapt_step(void)
{
    start();
    return samples == 0 ? FM_NO_SAMPLES : prototype_head();
}
