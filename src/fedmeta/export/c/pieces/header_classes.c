extern const char *const fm_classes[FM_OUTPUTS];

/* The class of an answer. */
int fm_class(const float *output);
