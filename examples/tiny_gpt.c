/* A GPT of bytes with the usual recipe: pre-norm softmax attention, learned positions, gelu, AdamW,
 * warm-up and cosine schedule, clipping; then a sample, by decode steps with a KV cache.
 * tiny_gpt [STEPS [FILE]] */
#include "shared/argument.h"

#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <tapegrad.h>

enum { BYTES = 256, LENGTH = 64, BATCH = 16, WIDTH = 64, HEADS = 4, MAX_TEXT = 1 << 20 };

static Embedding bytes, positions;
static Transformer transformer;
static Linear head;

/* Prints LENGTH bytes after a newline. */
static void sample(Tape *tape)
{
    TransformerState *state =
        nn_transformer_state(&transformer, (GenerationConfig){ .max_length = LENGTH });
    int32_t byte = '\n';
    tape_set_recording(tape, false);
    tape_set_training(tape, false);
    for (int i = 0; i < LENGTH; i++) {
        Tensor *x = nn_embedding_forward(tape, &bytes, tape_input_i32(tape, &byte, shape(1)));
        Tensor *at = nn_transformer_state_positions(state); /* int32 [1] */
        x = op_add(tape, x, nn_embedding_forward(tape, &positions, at));
        x = nn_linear_forward(tape, &head, nn_transformer_step(state, x)); /* [1, BYTES] */
        tensor_read_i32(op_sample(tape, x, (Sampling){ .temperature = 0.8 }), &byte);
        putchar(byte);
        tape_reset(tape);
    }
    putchar('\n');
    nn_transformer_state_free(state);
}

int main(int argc, char **argv)
{
    const int steps = argument_number(argc, argv, 1, "steps", 1, 400);
    static unsigned char text[MAX_TEXT];
    const char *path = argc > 2 ? argv[2] : "examples/sonnets.txt";
    FILE *file = fopen(path, "rb");
    if (!file)
        err(EXIT_FAILURE, "%s", path);
    const int64_t size = (int64_t)fread(text, 1, MAX_TEXT, file);
    if (size <= LENGTH)
        errx(EXIT_FAILURE, "%s: expected more than %d bytes", path, LENGTH);
    Params *params = params_new(device_best(), /*seed*/ 1);
    TransformerConfig config = { .layers = 2, .heads = HEADS, .head_dim = WIDTH / HEADS };
    config.attention = nn_causal_softmax_attention(params, (CausalSoftmaxConfig){ 0 });
    config.dropout = 0.1;
    config.pre_norm = true;
    config.activation = ACTIVATION_GELU;
    config.initial_std = 0.07;
    bytes = nn_embedding(params, "bytes", BYTES, WIDTH);
    positions = nn_embedding(params, "positions", LENGTH, WIDTH);
    transformer = nn_transformer(params, "transformer", config);
    head = nn_linear(params, "head", WIDTH, BYTES);
    AdamConfig adam = optim_adam_config(3e-3);
    adam.schedule = optim_cosine(/*warm_up*/ steps / 20, steps + 1, /*last*/ 0.1);
    Optimizer *optimizer = optim_adamw(params, adam);
    Tape *tape = tape_new(params_device(params));
    Random random = random_new(/*seed*/ 1, random_stream("windows"));

    for (int step = 1; step <= steps; step++) {
        int32_t tokens[BATCH][LENGTH], next[BATCH][LENGTH];
        for (int b = 0; b < BATCH; b++) {
            const int64_t start = random_integer(&random, 0, size - LENGTH);
            for (int i = 0; i < LENGTH; i++) {
                tokens[b][i] = text[start + i];
                next[b][i] = text[start + i + 1];
            }
        }
        Tensor *x = tape_input_i32(tape, tokens[0], shape(BATCH, LENGTH));
        x = nn_embedding_forward(tape, &bytes, x); /* [BATCH, LENGTH, WIDTH] */
        x = op_add(tape, x, positions.weight);     /* the same for each sequence */
        x = nn_transformer_forward(tape, &transformer, x, (AttentionOptions){ 0 });
        x = nn_linear_forward(tape, &head, x); /* [BATCH, LENGTH, BYTES] */
        Tensor *targets = tape_input_i32(tape, next[0], shape(BATCH, LENGTH));
        Tensor *loss = op_cross_entropy(tape, x, targets, NULL);
        tape_backward(tape, loss);
        params_clip_gradients(params, 1);
        optim_step(optimizer);
        if (step % 100 == 0)
            printf("step %3d  loss %.4f\n", step, tensor_item(loss));
        tape_reset(tape);
    }
    sample(tape);
    tape_free(tape);
    optim_free(optimizer);
    params_free(params);
    return fflush(stdout) || ferror(stdout); /* 1: the output could not be written */
}
