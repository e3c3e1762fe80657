/* Answers, into `answers`, after some steps on the samples outside a part (-1: on all). The head is
   linear, so that products of features are all it takes. */
static void several_steps(int part, int steps)
{
    no_pushes();
    memcpy(answers, meta_answers, sizeof answers);
    for (int step = 0; step < steps; step++) {
        add_pushes(part, answers);
        for (int s = 0; s < samples; s++) {
            for (int c = 0; c < FM_OUTPUTS; c++) {
                answers[s][c] = meta_answers[s][c] - shift[c];
                for (int i = 0; i < samples; i++) {
                    answers[s][c] -= products[s][i] * push[i][c];
                }
            }
        }
    }
}
