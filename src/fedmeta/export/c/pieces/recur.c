/* Gated recurrent units: h = y[t - 1], or 0 before the first step, and y[t] = (1 - z) n + z h with
   r, z = s(x + W h + b), n = tanh(x + r (W h + b)). x has three numbers for each of y[t].
   Finds r, z, n and W h + b of n for number j of step t. */
static void gates(int t, int width, int j, const float *weight, const float *bias, const float *x,
                  const float *y, float *found)
{
    float kept[3];
    for (int gate = 0; gate < 3; gate++) {
        const int o = gate * width + j;
        float sum = 0.0f;
        for (int i = 0; t > 0 && i < width; i++) {
            sum += weight[(size_t)o * width + i] * y[(t - 1) * width + i];
        }
        kept[gate] = sum + bias[o];
    }
    found[0] = 1.0f / (1.0f + expf(-(x[j] + kept[0])));
    found[1] = 1.0f / (1.0f + expf(-(x[width + j] + kept[1])));
    found[2] = tanhf(x[2 * width + j] + found[0] * kept[2]);
    found[3] = kept[2];
}

/* The states of steps first to last - 1; x has the numbers of these. */
static void recur(int first, int last, int width, const float *weight, const float *bias,
                  const float *x, float *y)
{
    for (int t = first; t < last; t++) {
        for (int j = 0; j < width; j++) {
            float found[4];
            gates(t, width, j, weight, bias, x + (t - first) * 3 * width, y, found);
            const float h = t > 0 ? y[(t - 1) * width + j] : 0.0f;
            y[t * width + j] = (1.0f - found[1]) * found[2] + found[1] * h;
        }
    }
}
