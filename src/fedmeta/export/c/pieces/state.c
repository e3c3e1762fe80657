/* Memory starts as zeros: the meta-model is put in its place on the first call. */
static void start(void)
{
    if (!started) {
        fm_reset();
    }
}

void fm_reset(void)
{
    memcpy(theta, meta, sizeof theta);
    started = 1;
    fm_adapt_begin();
}

void fm_save(float *parameters)
{
    start();
    memcpy(parameters, theta, sizeof theta);
}

int fm_load(const float *parameters)
{
    start();
    if (parameters == NULL || !all_finite(parameters, FM_PARAMETERS)) {
        return FM_BAD_INPUT;
    }
    memcpy(theta, parameters, sizeof theta);
    fm_adapt_begin();
    return FM_OK;
}
