/* A sample's features, answer and scaled label, if it and its label make sense. */
static int taken(const float *input, const float *label)
{
    if (label == NULL || !all_finite(label, FM_OUTPUTS)) {
        return FM_BAD_LABEL;
    }
    for (int i = 0; i < FM_OUTPUTS; i++) {
        target[i] = SCALED_LABEL(i, label[i]);
    }
    return all_finite(target, FM_OUTPUTS) ? run(input) : FM_BAD_LABEL;
}
