/* The smallest program that uses all of a model: what it takes is what the model takes. */
#include "model.h"

static float input[FM_INPUTS], output[FM_OUTPUTS];

int main(void)
{
    int status = fm_predict(input, output);
    fm_adapt_begin();
    status |= fm_adapt_add(input, 0);
    status |= fm_adapt_step();
#ifdef DECIDES
    status |= fm_decide(0);
#endif
    fm_reset();
    return status;
}
