/* The score of an answer: how far its class leads the next one. */
static float margin(const float *output)
{
    float most = output[0] > output[1] ? output[0] : output[1];
    float next = output[0] > output[1] ? output[1] : output[0];
    for (int i = 2; i < FM_OUTPUTS; i++) {
        if (output[i] > most) {
            next = most;
            most = output[i];
        } else if (output[i] > next) {
            next = output[i];
        }
    }
    return most - next;
}

float fm_confidence(const float *output)
{
    const float lead = margin(output) / BIN_WIDTH;
    if (!(lead > 0.0f)) { /* NaN too */
        return confidence[0];
    }
    return confidence[lead < BINS - 1 ? (int)lead : BINS - 1];
}

int fm_abstain(const float *output)
{
    return !(margin(output) >= FM_THRESHOLD);
}
