/* Runs the commands of the file "commands" on a model and writes what it answers to "results".
   A command is an int32, then what it takes: numbers of 4 bytes. */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>

enum { END, PREDICT, BEGIN, ADD, STEP, RESET, SAVE, LOAD, DECIDE, CONFIDENCE, INTACT };

static FILE *commands, *results;
static float input[FM_INPUTS], output[FM_OUTPUTS], parameters[FM_PARAMETERS];

static void take(void *to, size_t count)
{
    if (count > 0 && fread(to, 4, count, commands) != count) {
        exit(3);
    }
}

static void give(const void *from, size_t count)
{
    fwrite(from, 4, count, results);
}

static void status(int value)
{
    int32_t number = value;
    give(&number, 1);
}

static int add(void)
{
#ifdef VALUES
    take(output, FM_OUTPUTS);
    return fm_adapt_add(input, output);
#else
    int32_t label;
    take(&label, 1);
    return fm_adapt_add(input, label);
#endif
}

int main(void)
{
    int32_t command = END;
    commands = fopen("commands", "rb");
    results = fopen("results", "wb");
    if (commands == NULL || results == NULL) {
        return 2;
    }
    for (;;) {
        take(&command, 1);
        switch (command) {
        case PREDICT:
            take(input, FM_INPUTS);
            status(fm_predict(input, output));
            give(output, FM_OUTPUTS);
            break;
        case BEGIN:
            fm_adapt_begin();
            break;
        case ADD:
            take(input, FM_INPUTS);
            status(add());
            break;
        case STEP:
            status(fm_adapt_step());
            break;
        case RESET:
            fm_reset();
            break;
        case SAVE:
            fm_save(parameters);
            give(parameters, FM_PARAMETERS);
            break;
        case LOAD:
            take(parameters, FM_PARAMETERS);
            status(fm_load(parameters));
            break;
#ifdef DECIDES
        case DECIDE: {
            struct fm_decision decision = {0, 0, {0}};
            status(fm_decide(&decision));
            status(decision.choice);
            status(decision.counted);
            give(decision.losses, FM_CANDIDATES);
            break;
        }
#endif
#ifdef FM_THRESHOLD
        case CONFIDENCE: {
            float found;
            take(output, FM_OUTPUTS);
            found = fm_confidence(output);
            give(&found, 1);
            status(fm_abstain(output));
            break;
        }
#endif
        case INTACT:
            status(fm_intact());
            break;
        default:
            return fclose(results) == 0 && command == END ? 0 : 4;
        }
    }
}
