/* Ten thousand calls with samples and labels that make sense and that do not. After each of them
   the model is finite, and after one that was refused it is as it was. */
#include "model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t seed = 20211;
static float input[FM_INPUTS], output[FM_OUTPUTS];
static float before[FM_PARAMETERS], after[FM_PARAMETERS];
static int refused, done;

static uint32_t draw(uint32_t below)
{
    seed ^= seed << 13;
    seed ^= seed >> 17;
    seed ^= seed << 5;
    return seed % below;
}

static float hostile(void)
{
    static const float odd[] = {0.0f, -0.0f, 1e-45f, 1e30f, -3e38f, 3.4e38f, INFINITY, -INFINITY, NAN};
    return odd[draw(sizeof odd / sizeof odd[0])];
}

static void make(float *numbers, int count)
{
    const uint32_t kind = draw(8);
    for (int i = 0; i < count; i++) {
        numbers[i] = ((float)draw(2001) - 1000.0f) / 300.0f;
        if (kind == 0 || (kind == 1 && draw((uint32_t)count) == 0)) {
            numbers[i] = hostile();
        } else if (kind == 2) {
            numbers[i] *= 1e18f;
        }
    }
}

static void require(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "call %d: %s\n", done, what);
        exit(1);
    }
}

static int add(void)
{
#ifdef VALUES
    make(output, FM_OUTPUTS);
    return fm_adapt_add(draw(50) == 0 ? NULL : input, draw(50) == 0 ? NULL : output);
#else
    static const int odd[] = {-1, FM_OUTPUTS, INT32_MAX, INT32_MIN};
    const int label = draw(10) == 0 ? odd[draw(4)] : (int)draw(FM_OUTPUTS);
    return fm_adapt_add(draw(50) == 0 ? NULL : input, label);
#endif
}

static int call(void)
{
    const uint32_t kind = draw(20);
    make(input, FM_INPUTS);
    if (kind < 8) {
        return add();
    }
    if (kind < 14) {
        const int status = fm_predict(draw(50) == 0 ? NULL : input, draw(50) == 0 ? NULL : output);
        for (int i = 0; status == FM_OK && i < FM_OUTPUTS; i++) {
            require(isfinite(output[i]), "an answer is not finite");
        }
        return status;
    }
    if (kind < 16) {
        return fm_adapt_step();
    }
    if (kind == 16) {
        make(after, FM_PARAMETERS);
        return fm_load(draw(10) == 0 ? NULL : after);
    }
    if (kind == 17) {
#ifdef DECIDES
        struct fm_decision decision;
        return fm_decide(draw(2) ? &decision : NULL);
#else
        return fm_adapt_step();
#endif
    }
    if (kind == 18) {
#ifdef FM_THRESHOLD
        make(output, FM_OUTPUTS);
        require(fm_confidence(output) >= 0.0f && fm_confidence(output) <= 1.0f, "confidence");
        require(fm_abstain(output) == 0 || fm_abstain(output) == 1, "abstain");
#endif
        return FM_OK;
    }
    if (draw(3) == 0) {
        fm_reset();
    } else {
        fm_adapt_begin();
    }
    return FM_OK;
}

int main(void)
{
    require(fm_adapt_step() == FM_NO_SAMPLES, "a step without samples");
    for (done = 0; done < 10000; done++) {
        int status;
        fm_save(before);
        status = call();
        fm_save(after);
        for (int i = 0; i < FM_PARAMETERS; i++) {
            require(isfinite(after[i]), "a parameter is not finite");
        }
        if (status != FM_OK) {
            refused++;
            require(memcmp(before, after, sizeof before) == 0, "a refused call moved the model");
        }
    }
    require(fm_intact(), "constants changed");
    printf("%d refused\n", refused);
    return refused > 1000 && refused < 9000 ? 0 : 1;
}
