/* What the network answers to a raw input, into `answer`. */
static int run(const float *input)
{
    start();
    if (input == NULL || !all_finite(input, FM_INPUTS)) {
        return FM_BAD_INPUT;
    }
    body(input);
    forward(features, theta);
    return all_finite(answer, FM_OUTPUTS) ? FM_OK : FM_NOT_FINITE;
}
