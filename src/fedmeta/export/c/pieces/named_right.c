/* Whether the class of a sample is the one that is answered, into `answers`. */
static int named_right(int s)
{
    int best = 0;
    for (int c = 1; c < FM_OUTPUTS; c++) {
        best = answers[s][c] > answers[s][best] ? c : best;
    }
    return best == labels[s];
}
