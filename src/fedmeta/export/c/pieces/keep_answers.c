/* Answers of all samples under some parameters. */
static void answer_all(const float *parameters, double table[][FM_OUTPUTS])
{
    for (int s = 0; s < samples; s++) {
        forward(kept[s], parameters);
        for (int c = 0; c < FM_OUTPUTS; c++) {
            table[s][c] = answer[c];
        }
    }
}
