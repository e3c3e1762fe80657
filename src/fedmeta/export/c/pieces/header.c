/* A meta-model that predicts and adapts, in C99 without heap or input and output.

   All functions work on static memory: one model, one thread at a time. Those that return int give
   FM_OK or a number below 0, and then the model is as it was. Samples are raw: they are scaled
   inside. Written by fedmeta export. */
#ifndef FM_MODEL_H
#define FM_MODEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FM_RUN RUN_TEXT
#define FM_CHECKSUM CHECKSUM_TEXT /* SHA-256 of the constants */
INPUT_NAMES
enum {
    FM_INPUTS = INPUTS_NUMBER,         /* numbers of a sample: INPUT_SHAPE */
    FM_OUTPUTS = OUTPUTS_NUMBER,       /* numbers of an answer */
    FM_PARAMETERS = PARAMETERS_NUMBER, /* numbers that adaptation moves */
    FM_STEPS = STEPS_NUMBER            /* steps that the model was trained for */
};

enum {
    FM_OK = 0,
    FM_BAD_INPUT = -1,  /* a sample is absent, NaN or infinite */
    FM_BAD_LABEL = -2,  /* a label is no class of the model, NaN or infinite */
    FM_NO_SAMPLES = -3, /* there is nothing to adapt to */
    FM_FULL = -4,       /* no further sample can be taken */
    FM_NOT_FINITE = -5  /* numbers became too large */
};

/* Answers to a sample: one number per class (the largest wins), or values in the labels' unit. */
int fm_predict(const float *input, float *output);

/* Adapting: begin, add labelled samples one at a time, step. */
void fm_adapt_begin(void);
int fm_adapt_add(const float *input, LABEL_ARGUMENT);
int fm_adapt_step(void);

/* Back to the meta-model. */
void fm_reset(void);

/* The FM_PARAMETERS numbers that adaptation moves, to keep over a restart. */
void fm_save(float *parameters);
int fm_load(const float *parameters);

/* Whether the constants in flash are those that were exported. */
int fm_intact(void);
