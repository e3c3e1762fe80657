/* Samples come one at a time and are not kept: the features of each class are added up. */
void fm_adapt_begin(void)
{
    memset(sums, 0, sizeof sums);
    samples = 0;
}

int fm_adapt_add(const float *input, int label)
{
    const int status = samples < 1 << 24 ? taken(input, label) : FM_FULL;
    if (status == FM_OK) {
        for (int k = 0; k < FEATURES; k++) {
            sums[WEIGHT + label * FEATURES + k] += features[k];
        }
        sums[BIAS + label] += 1.0f;
        samples++;
    }
    return status;
}

static int class_count(int c)
{
    return (int)sums[BIAS + c];
}

static double class_mean(int c, int k)
{
    return sums[WEIGHT + c * FEATURES + k] / sums[BIAS + c];
}
