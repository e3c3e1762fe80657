int fm_predict(const float *input, float *output)
{
    const int status = output == NULL ? FM_BAD_INPUT : run(input);
    if (status == FM_OK) {
        memcpy(output, answer, sizeof answer);
    }
    return status;
}
