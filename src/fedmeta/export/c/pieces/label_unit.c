/* Labels are values in a unit of their own: the network sees (label - mean) / deviation. */
static float scaled_label(int i, float label)
{
    return (float)(((double)label - label_mean[i]) / label_deviation[i]);
}

static float in_label_unit(int i, float output)
{
    return (float)(label_mean[i] + label_deviation[i] * (double)output);
}
