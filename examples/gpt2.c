/* GPT-2 (Radford et al. 2019) of any size: trains by AdamW, then draws tokens by decode steps.
 *     gpt2 FILE [STEPS [LAYERS HEADS [WEIGHTS]]]
 * FILE.bin holds uint16 tokens of GPT-2's vocabulary, as nanoGPT's prepare.py writes them; in other
 * files each byte is a token. 12 layers of 12 heads are GPT-2 124M. WEIGHTS start the training:
 * Hugging Face's model.safetensors, converted by examples/from_pytorch.py. */
#include "shared/argument.h"

#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tapegrad.h>

enum { HEAD_DIM = 64, CONTEXT = 1024, LENGTH = 64, BATCH = 4, END_OF_TEXT = 50256 };
static uint16_t text[1 << 27];

/* Reads the tokens into text, whose number it returns. */
static int64_t read_text(const char *path, int is_text)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        err(EXIT_FAILURE, "%s", path);
    int64_t size = 0;
    for (int c, d = 0; size < 1 << 27 && (c = getc(file)) != EOF && d != EOF; size++)
        text[size] = (uint16_t)(is_text || (d = getc(file)) == EOF ? c : c | d << 8);
    if (size <= LENGTH)
        errx(EXIT_FAILURE, "%s: expected a file of more than %d tokens", path, LENGTH);
    fclose(file);
    return size;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "examples/sonnets.txt", *dot = strrchr(path, '.');
    const int is_text = !dot || strcmp(dot, ".bin");
    const int steps = argument_number(argc, argv, 2, "steps", 0, 200);
    const int64_t size = read_text(path, is_text);
    Params *params = params_new(device_best(), /*seed*/ 1);
    TransformerConfig config = { .head_dim = HEAD_DIM };
    config.layers = argument_number(argc, argv, 3, "layers", 1, 2);
    config.heads = argument_number(argc, argv, 4, "heads", 1, 2);
    config.attention = nn_causal_softmax_attention(params, (CausalSoftmaxConfig){ 0 });
    config.activation = ACTIVATION_GELU_TANH;
    config.pre_norm = true;
    config.initial_std = 0.02;
    const int64_t width = config.heads * HEAD_DIM, vocabulary = is_text ? 256 : END_OF_TEXT + 1;
    const Initializer normal = { INITIAL_NORMAL, 0.02 };
    const Embedding tokens = nn_embedding_with(params, "wte", vocabulary, width, normal);
    const Embedding positions = nn_embedding_with(params, "wpe", CONTEXT, width, normal);
    const Transformer transformer = nn_transformer(params, "", config);
    if (argc > 5 && !params_load(params, argv[5]))
        errx(EXIT_FAILURE, "%s", tapegrad_error());
    AdamConfig adam = optim_adam_config(argc > 5 ? 3e-5 : 1e-3);
    adam.schedule = optim_cosine(/*warm_up*/ steps / 20, steps + 1, /*last*/ 0.1);
    adam.beta2 = 0.95;
    adam.weight_decay = 0.1;
    Optimizer *optimizer = optim_adamw(params, adam);
    optim_set_group(optimizer, "*norm*", 1, /*weight_decay_factor*/ 0);
    optim_set_group(optimizer, "*.bias", 1, 0);
    Tape *tape = tape_new(params_device(params));
    Random random = random_new(/*seed*/ 1, random_stream("windows"));

    for (int step = 1; step <= steps; step++) {
        int32_t window[BATCH][LENGTH], next[BATCH][LENGTH];
        for (int b = 0; b < BATCH; b++) {
            const int64_t start = random_integer(&random, 0, size - LENGTH);
            for (int i = 0; i < LENGTH; i++) {
                window[b][i] = text[start + i];
                next[b][i] = text[start + i + 1];
            }
        }
        Tensor *x = tape_input_i32(tape, window[0], shape(BATCH, LENGTH));
        x = nn_embedding_forward(tape, &tokens, x);
        x = op_add(tape, x, op_slice(tape, positions.weight, 0, 0, LENGTH));
        x = nn_transformer_forward(tape, &transformer, x, (AttentionOptions){ 0 });
        Tensor *targets = tape_input_i32(tape, next[0], shape(BATCH, LENGTH));
        /* Tied: the logits are op_linear(tape, x, tokens.weight, NULL). */
        Tensor *loss = op_linear_cross_entropy(tape, x, tokens.weight, NULL, targets, NULL);
        tape_backward(tape, loss);
        params_clip_gradients(params, 1);
        optim_step(optimizer);
        printf("step %d  loss %.4f\n", step, tensor_item(loss));
        tape_reset(tape);
    }
    int32_t token = is_text ? '\n' : END_OF_TEXT; /* the sample follows it */
    tape_set_recording(tape, false);
    TransformerState *state =
        nn_transformer_state(&transformer, (GenerationConfig){ .max_length = LENGTH });
    for (int i = 0; i < LENGTH; i++) {
        Tensor *x = nn_embedding_forward(tape, &tokens, tape_input_i32(tape, &token, shape(1)));
        Tensor *at = nn_transformer_state_positions(state); /* int32 [1] */
        x = op_add(tape, x, nn_embedding_forward(tape, &positions, at));
        x = op_linear(tape, nn_transformer_step(state, x), tokens.weight, NULL);
        tensor_read_i32(op_sample(tape, x, (Sampling){ .temperature = 0.8, .top_k = 40 }), &token);
        printf(is_text ? "%c" : "%d ", token);
        tape_reset(tape);
    }
    nn_transformer_state_free(state);
    tape_free(tape);
    optim_free(optimizer);
    params_free(params);
    return fflush(stdout) || ferror(stdout); /* 1: the output could not be written */
}
