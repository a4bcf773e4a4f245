/* Two tests of what kinds of attention can store:
 *   recall  multi-query associative recall (Arora et al. 2023, Zoology): PAIRS of a key and its
 *           value, then all keys in another order; the answer to each is its value. A sum over the
 *           past, as of linear attention, confuses keys unless it can correct what it stored.
 *   parity  of all bits so far, after each bit: a state that flips, which neither softmax nor
 *           linear attention has.
 * Each kind trains a transformer of two layers; the accuracy is that of fresh sequences. */
#include "examples/shared/argument.h"
#include "examples/shared/attention.h"
#include "examples/shared/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRS = 8, KEYS = 32, VALUES = 32, BATCH = 64, WIDTH = 64, HEADS = 2 };
enum { STEPS = 2000, FRESH = 8 };
enum { LENGTH = 3 * PAIRS, SYMBOLS = KEYS + VALUES };

typedef struct Examples {
    int32_t tokens[BATCH][LENGTH], answers[BATCH][LENGTH];
    Real asked[BATCH][LENGTH]; /* 1 where the answer counts */
} Examples;

typedef struct Model {
    Embedding tokens, positions;
    Transformer transformer;
    Linear head;
} Model;

static void draw_recall(Examples *out, Random *random)
{
    for (int b = 0; b < BATCH; b++) {
        int32_t keys[KEYS], order[PAIRS], values[PAIRS];
        random_permutation(random, keys, KEYS);
        random_permutation(random, order, PAIRS);
        for (int i = 0; i < PAIRS; i++) {
            values[i] = (int32_t)random_integer(random, KEYS, SYMBOLS);
            out->tokens[b][2 * i] = keys[i];
            out->tokens[b][2 * i + 1] = values[i];
        }
        for (int i = 0; i < PAIRS; i++) {
            out->tokens[b][2 * PAIRS + i] = keys[order[i]];
            out->answers[b][2 * PAIRS + i] = values[order[i]];
            out->asked[b][2 * PAIRS + i] = 1;
        }
    }
}

static void draw_parity(Examples *out, Random *random)
{
    for (int b = 0; b < BATCH; b++) {
        for (int i = 0, parity = 0; i < LENGTH; i++) {
            out->tokens[b][i] = (int32_t)random_integer(random, 0, 2);
            out->answers[b][i] = parity ^= out->tokens[b][i];
            out->asked[b][i] = 1;
        }
    }
}

static Tensor *forward(Tape *tape, const Model *model, const Examples *examples)
{
    Tensor *x = tape_input_i32(tape, examples->tokens[0], shape(BATCH, LENGTH));
    x = op_add(tape, nn_embedding_forward(tape, &model->tokens, x), model->positions.weight);
    x = nn_transformer_forward(tape, &model->transformer, x, (AttentionOptions){ 0 });
    return nn_linear_forward(tape, &model->head, x); /* [BATCH, LENGTH, SYMBOLS] */
}

/* The accuracy after training for `steps` steps. */
static double learn(Device *device, const char *attention, int steps,
                    void (*draw)(Examples *, Random *))
{
    Params *params = params_new(device, /*seed*/ 1);
    TransformerConfig config = { .layers = 2, .heads = HEADS, .head_dim = WIDTH / HEADS };
    config.pre_norm = true;
    config.activation = ACTIVATION_GELU;
    attention_set(&config, params, attention,
                  (KindOptions){ .features = "elu+1", .window = 2 * PAIRS });
    const Model model = { .tokens = nn_embedding(params, "tokens", SYMBOLS, WIDTH),
                          .positions = nn_embedding(params, "positions", LENGTH, WIDTH),
                          .transformer = nn_transformer(params, "transformer", config),
                          .head = nn_linear(params, "head", WIDTH, SYMBOLS) };
    AdamConfig adam = optim_adam_config(2e-3);
    adam.schedule = optim_cosine(/*warm_up*/ steps / 20, steps + 1, /*last*/ 0);
    Optimizer *optimizer = optim_adamw(params, adam);
    Tape *tape = tape_new(device);
    Random random = random_new(/*seed*/ 1, random_stream("examples"));
    double accuracy = 0;
    for (int step = 1; step <= steps + FRESH; step++) {
        static Examples examples;
        draw(&examples, &random);
        Tensor *x = forward(tape, &model, &examples);
        Tensor *answers = tape_input_i32(tape, examples.answers[0], shape(BATCH, LENGTH));
        Tensor *asked = tape_input(tape, examples.asked[0], shape(BATCH, LENGTH));
        if (step > steps) { /* examples that no step has seen */
            accuracy += tensor_item(op_accuracy(tape, x, answers, asked)) / FRESH;
        } else {
            Tensor *loss = op_cross_entropy(tape, x, answers, asked);
            tape_backward(tape, loss);
            params_clip_gradients(params, 1);
            optim_step(optimizer);
            if (step % 200 == 0)
                fprintf(stderr, "%s: step %d  loss %.4f\n", attention, step, tensor_item(loss));
        }
        tape_reset(tape);
    }
    tape_free(tape);
    optim_free(optimizer);
    params_free(params);
    return accuracy;
}

static void print_help(void)
{
    printf("usage: %s recall|parity [STEPS [ATTENTION [DEVICE]]]\n\n"
           "Measures what kinds of attention can store: trains a transformer of two layers\n"
           "of each kind, and prints its accuracy on fresh sequences.\n\n"
           "  recall               answer with the values of %d keys (Arora et al. 2023,\n"
           "                       Zoology)\n"
           "  parity               answer with the parity of all bits so far\n"
           "  STEPS                of training (%d)\n"
           "  ATTENTION            one kind alone: ",
           program_name(), PAIRS, STEPS);
    for (int i = 0; attention_names[i]; i++)
        printf("%s%s", !i ? "" : i % 4 ? ", " : ",\n                       ", attention_names[i]);
    printf("\n  DEVICE               of the computation: plain, cpu, cpu:repeatable or cuda\n"
           "                       (default: cuda if there is a GPU, else cpu)\n"
           "  --help               print this\n");
}

int main(int argc, char **argv)
{
    program_start(argv[0]);
    if (argc > 1 && !strcmp(argv[1], "--help")) {
        print_help();
        return EXIT_SUCCESS;
    }
    const bool parity = argc > 1 && !strcmp(argv[1], "parity");
    if (argc < 2 || (!parity && strcmp(argv[1], "recall")))
        fail(BAD_USE, "%s: expected recall|parity [STEPS [ATTENTION [DEVICE]]]",
             argc < 2 ? "" : argv[1]);
    const int steps = argument_number(argc, argv, 2, "steps", 1, STEPS);
    Device *device = argc > 4 ? device_open(argv[4]) : device_best();
    bool found = false;
    for (int i = 0; attention_names[i]; i++) {
        if (argc > 3 && strcmp(argv[3], attention_names[i]))
            continue;
        found = true;
        printf("%s %s: accuracy %.1f %%\n", argv[1], attention_names[i],
               100 * learn(device, attention_names[i], steps, parity ? draw_parity : draw_recall));
        fflush(stdout);
    }
    if (!found)
        fail(BAD_USE, "%s: expected the name of a kind of attention, as softmax", argv[3]);
    return EXIT_SUCCESS;
}
