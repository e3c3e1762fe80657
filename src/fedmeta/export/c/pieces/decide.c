/* Adapt only if it helps: the samples choose between the meta-model as it is, class means, one step
   and several. Every sample is answered by the model adapted to the others. */

/* Answers, into `answers`, of a candidate adapted to the samples outside a part (-1: to all). */
static void answers_of(int candidate, int part)
{
ANSWERS_OF_CANDIDATE
}

static double mean_loss(void)
{
    double sum = 0;
    for (int s = 0; s < samples; s++) {
        sum += loss(answers[s], labels[s]) / samples;
    }
    return sum;
}

/* Whether a sample says something: others like it are in another part. */
static int counts(int s)
{
    for (int i = 0; i < samples; i++) {
        if (i % FOLDS != s % FOLDS && SAME_CLASS(i, s)) {
            return 1;
        }
    }
    return 0;
}

/* Where leaving out says nothing: as trained, unless that does not help. */
static int unjudged(int single)
{
    int right = single;
    double before;
    answers_of(FM_NONE, -1);
    before = mean_loss();
    for (int s = 0; s < samples; s++) {
        right = right && NAMED_RIGHT(s);
    }
    answers_of(TRAINED_FOR, -1);
    return right || !(mean_loss() < before) ? FM_NONE : TRAINED_FOR;
}

/* The candidate that the losses of the counted samples speak for. */
static int judged(const double *means, const int *is_in, int counted)
{
    static const double student[] = {
        6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796,
        1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717,
        1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697, 1.645}; /* 95 % points */
    const int last = (int)(sizeof student / sizeof student[0]) - 1;
    int best = -1;
    double lead = 0, spread = 0;

    for (int c = 0; c < FM_CANDIDATES; c++) {
        if (is_in[c] && (best < 0 || means[c] < means[best])) {
            best = c;
        }
    }
    if (best < 0 || !is_in[TRAINED_FOR]) {
        return best < 0 ? FM_NONE : best;
    }
    for (int s = 0; s < samples; s++) {
        lead += counts(s) ? (left_out[TRAINED_FOR][s] - left_out[best][s]) / counted : 0;
    }
    for (int s = 0; s < samples; s++) {
        const double away = left_out[TRAINED_FOR][s] - left_out[best][s] - lead;
        spread += counts(s) ? away * away : 0;
    }
    spread = sqrt(spread / ((double)counted * (counted - 1)));
    return lead > student[counted - 2 < last ? counted - 2 : last] * spread ? best : TRAINED_FOR;
}

int fm_decide(struct fm_decision *decision)
{
    double means[FM_CANDIDATES];
    int is_in[FM_CANDIDATES], counted = 0, single = HAS_CLASSES, choice, status = FM_OK;

    start();
    if (samples == 0) {
        return FM_NO_SAMPLES;
    }
    answer_all(meta, meta_answers);
    for (int s = 0; s < samples; s++) {
        counted += counts(s);
        single = single && SAME_CLASS(0, s);
        for (int i = 0; i <= s; i++) {
            double sum = 0;
            for (int k = 0; k < FEATURES; k++) {
                sum += (double)kept[s][k] * kept[i][k];
            }
            products[s][i] = products[i][s] = sum;
        }
    }
    for (int c = 0; c < FM_CANDIDATES; c++) {
        means[c] = 0;
        is_in[c] = IS_CANDIDATE(c);
        for (int part = 0; is_in[c] && counted > 0 && part < samples && part < FOLDS; part++) {
            answers_of(c, part);
            for (int s = part; s < samples; s += FOLDS) {
                left_out[c][s] = loss(answers[s], labels[s]);
            }
        }
        for (int s = 0; IS_CANDIDATE(c) && s < samples; s++) {
            if (counts(s)) {
                is_in[c] = is_in[c] && is_finite((float)left_out[c][s]);
                means[c] += left_out[c][s] / counted;
            }
        }
    }
    choice = counted > 0 && !single ? judged(means, is_in, counted) : unjudged(single);
    if (choice == FM_NONE) {
        memcpy(theta, meta, sizeof theta);
    }ELSE_ADAPT
    if (decision != NULL && status == FM_OK) {
        decision->choice = choice;
        decision->counted = counted;
        for (int c = 0; c < FM_CANDIDATES; c++) {
            decision->losses[c] = IS_CANDIDATE(c) && counted > 0 ? (float)means[c] : NAN;
        }
    }
    return status;
}
