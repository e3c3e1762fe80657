/* Answers of the class means of the samples outside a part, from products of features alone. */
static void means_without(int part)
{
    double own[FM_OUTPUTS], centre[FM_OUTPUTS], whole = 0, variance = 0, t;
    int of[FM_OUTPUTS], present = 0;

    for (int c = 0; c < FM_OUTPUTS; c++) {
        of[c] = 0;
        own[c] = centre[c] = 0; /* products of a mean with itself, and with the centre */
    }
    for (int s = 0; s < samples; s++) {
        of[labels[s]] += s % FOLDS != part;
    }
    for (int c = 0; c < FM_OUTPUTS; c++) {
        present += of[c] > 0;
    }
    for (int s = 0; s < samples; s++) {
        for (int i = 0; s % FOLDS != part && i < samples; i++) {
            if (i % FOLDS != part) {
                const double share =
                    products[s][i] / ((double)of[labels[s]] * of[labels[i]]);
                own[labels[s]] += labels[s] == labels[i] ? share : 0;
                centre[labels[s]] += share / present;
            }
        }
    }
    for (int c = 0; c < FM_OUTPUTS; c++) {
        whole += centre[c] / present;
    }
    for (int c = 0; c < FM_OUTPUTS; c++) {
        variance += of[c] > 0 ? (own[c] - 2 * centre[c] + whole) / present : 0;
    }
    t = tightness(variance, whole, present);
    for (int s = 0; s < samples; s++) {
        double to_mean[FM_OUTPUTS] = {0}, to_centre = 0;
        for (int i = 0; i < samples; i++) {
            if (i % FOLDS != part) {
                to_mean[labels[i]] += products[s][i] / of[labels[i]];
                to_centre += products[s][i] / of[labels[i]] / present;
            }
        }
        for (int c = 0; c < FM_OUTPUTS; c++) {
            const double offset = whole - own[c];
            const double made = of[c] > 0 ? t * (2 * (to_mean[c] - to_centre) + offset)
                                          : -t * variance - BEHIND;
            answers[s][c] = made + KEPT_ANSWER(s, c);
        }
    }
}
