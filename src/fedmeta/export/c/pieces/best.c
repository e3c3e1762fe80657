int fm_class(const float *output)
{
    int best = 0;
    for (int i = 1; i < FM_OUTPUTS; i++) {
        if (output[i] > output[best]) {
            best = i;
        }
    }
    return best;
}
