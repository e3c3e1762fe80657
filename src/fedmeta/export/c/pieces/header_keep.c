/* Up to FM_SAMPLES samples are kept until fm_adapt_begin: a further step needs no feeding. */
enum { FM_SAMPLES = SAMPLES_NUMBER };

/* Candidates of a decision. */
enum { FM_NONE, FM_PROTOTYPES, FM_ONE, FM_SEVERAL, FM_CANDIDATES };

struct fm_decision {
    int choice;
    int counted;                 /* samples that say something */
    float losses[FM_CANDIDATES]; /* on samples left out; NaN of what is no candidate */
};

/* Adapts the meta-model only if the samples say that it helps, and how; tells where not NULL. */
int fm_decide(struct fm_decision *decision);
