/* A sample's features and answer, if it and its class make sense. */
static int taken(const float *input, int label)
{
    if (label < 0 || label >= FM_OUTPUTS) {
        return FM_BAD_LABEL;
    }
    return run(input);
}
