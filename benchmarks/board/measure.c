/* Prints, for every function of a model, how many instructions it takes on an emulated board and how
   many bytes of stack: an instruction takes a nanosecond there (-icount shift=0) and the processor's
   timer ticks every 40, so that counts are good to 40. */
#include "model.h"

#include <stdio.h>

enum { DEEPEST = 16384, TICK = 40, PAINT = 0xa5, WRAP = 0xffffff };

static volatile uint32_t *const timer = (volatile uint32_t *)0xe000e010u; /* SysTick */
static float input[FM_INPUTS], output[FM_OUTPUTS];
static int status;

static void predict(void)
{
    status |= fm_predict(input, output);
}

static void sample(void)
{
    status |= fm_adapt_add(input, 0);
}

static void step(void)
{
    status |= fm_adapt_step();
}

#ifdef DECIDES
static void keep(void)
{
    for (int number = 1; number < FM_SAMPLES; number++) {
        input[0] = (float)number;
        status |= fm_adapt_add(input, number % FM_OUTPUTS / 2);
    }
}

static void decide(void)
{
    struct fm_decision decision;
    status |= fm_decide(&decision);
}
#endif

static void __attribute__((noinline)) measure(const char *name, void (*call)(void))
{
    volatile unsigned char *top, *deepest;
    uint32_t before, after;
    __asm volatile("mov %0, sp" : "=r"(top));
    for (deepest = top - DEEPEST; deepest < top; deepest++) {
        *deepest = PAINT;
    }
    before = timer[2];
    call();
    after = timer[2];
    for (deepest = top - DEEPEST; deepest < top && *deepest == PAINT; deepest++) {
    }
    printf("%s %lu %ld\n", name, (unsigned long)((before - after) & WRAP) * TICK,
           (long)(top - deepest));
}

int main(void)
{
    timer[1] = WRAP;
    timer[2] = 0;
    timer[0] = 5; /* on, by the processor's clock */
    for (int i = 0; i < FM_INPUTS; i++) {
        input[i] = (float)((i * 37) % 101) / 25.0f - 2.0f;
    }
    measure("predict", predict);
    fm_adapt_begin();
    measure("sample", sample);
#ifdef DECIDES
    keep();
    measure("decide", decide);
#endif
    measure("step", step);
    return status;
}
