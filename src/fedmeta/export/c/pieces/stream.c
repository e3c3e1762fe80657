/* Samples come one at a time and are not kept: their gradients are added up. */
void fm_adapt_begin(void)
{
    memset(sums, 0, sizeof sums);
    samples = 0;
}

int fm_adapt_add(const float *input, LABEL label)
{
    const int status = samples < INT32_MAX ? taken(input, label) : FM_FULL;
    if (status == FM_OK) {
        loss_slope(answer, TARGET(label), answer_slope);
        backward(features, theta);
        samples++;
    }
    return status;
}
