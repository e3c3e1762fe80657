int fm_adapt_step(void)
{
    start();
    if (samples == 0) {
        return FM_NO_SAMPLES;
    }
    answer_all(theta, answers);
    no_pushes();
    add_pushes(-1, answers);
    return move_head(theta);
}
