/* The mean of numbers; what rounding took from the sum is added once more, so that the mean of equal
   numbers is their value and they are told apart from none. */
static float mean_of(int count, const float *x)
{
    float mean = 0.0f, rest = 0.0f;
    for (int i = 0; i < count; i++) {
        mean += x[i] / (float)count;
    }
    for (int i = 0; i < count; i++) {
        rest += x[i] - mean;
    }
    return mean + rest / (float)count;
}
