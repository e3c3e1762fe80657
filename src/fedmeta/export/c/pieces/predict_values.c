int fm_predict(const float *input, float *output)
{
    const int status = output == NULL ? FM_BAD_INPUT : run(input);
    if (status != FM_OK) {
        return status;
    }
    for (int i = 0; i < FM_OUTPUTS; i++) {
        answer[i] = in_label_unit(i, answer[i]);
    }
    if (!all_finite(answer, FM_OUTPUTS)) {
        return FM_NOT_FINITE;
    }
    memcpy(output, answer, sizeof answer);
    return FM_OK;
}
