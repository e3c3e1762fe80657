/* From the last step to the first: g = dL/dy gets what later steps add to that of earlier ones. */
static void recur_backward(int steps, int width, const float *weight, const float *bias,
                           const float *x, const float *y, float *g, float *by_weight,
                           float *by_bias, float *by_x)
{
    for (int t = steps - 1; t >= 0; t--) {
        const float *given = x + t * 3 * width, *h = t > 0 ? y + (t - 1) * width : NULL;
        for (int j = 0; j < width; j++) {
            const float slope = g[t * width + j];
            float found[4];
            gates(t, width, j, weight, bias, given, y, found);
            const float r = found[0], z = found[1], n = found[2];
            const float by_n = slope * (1.0f - z) * (1.0f - n * n);
            const float by_r = by_n * found[3] * r * (1.0f - r);
            const float by_z = slope * ((t > 0 ? h[j] : 0.0f) - n) * z * (1.0f - z);
            const float by_given[3] = {by_r, by_z, by_n}, by_kept[3] = {by_r, by_z, by_n * r};
            for (int gate = 0; gate < 3; gate++) {
                const int o = gate * width + j;
                if (by_x != NULL) {
                    by_x[t * 3 * width + o] = by_given[gate];
                }
                if (by_bias != NULL) {
                    by_bias[o] += by_kept[gate];
                }
                for (int i = 0; by_weight != NULL && t > 0 && i < width; i++) {
                    by_weight[o * width + i] += by_kept[gate] * h[i];
                }
                for (int i = 0; t > 0 && i < width; i++) {
                    g[(t - 1) * width + i] += by_kept[gate] * weight[o * width + i];
                }
            }
            if (t > 0) {
                g[(t - 1) * width + j] += slope * z;
            }
        }
    }
}
