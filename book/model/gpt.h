/* The model of examples/micro_gpt.c, whose numbers the programs of chapter 12 print. */
#define main micro_gpt_main
#include "../../examples/micro_gpt.c"
#undef main

#include <math.h>
#include <string.h>

enum { TEST = 1000000 }; /* the seed of a batch on which nothing trains */

static inline void begin(int layers)
{
    if (name_count == 0)
        read_names("examples/names.txt");
    make_model(device_open("plain"), layers);
}

static inline void end(void)
{
    tape_free(tape);
    optim_free(optimizer);
    params_free(params);
}

/* The last two words of a weight's name: "query.weight". */
static inline const char *short_name(const Tensor *weight)
{
    const char *word = strrchr(weight->name, '.');
    while (word > weight->name && word[-1] != '.')
        word--;
    return word;
}

static inline double test_loss(void)
{
    tape_set_recording(tape, false);
    const double loss = tensor_item(batch_loss(random_new(TEST, 0)));
    tape_reset(tape);
    tape_set_recording(tape, true);
    return loss;
}

static inline void compute_test_gradients(void)
{
    params_zero_gradients(params);
    tape_backward(tape, batch_loss(random_new(TEST, 0)));
    tape_reset(tape);
}
