/* Training steps of GPT-2 on given weights and tokens, for bench/peers/gpt2.py: prints each step's
 * loss and milliseconds. Batches of 4 sequences of 64 tokens and the settings of AdamW are those of
 * llm.c's train_gpt2.c, without weight decay or clipping; so is the format of the tokens' file. */
#include "bench/common.h"

#include <stdlib.h>

enum { BATCH = 4, LENGTH = 64, TOKENS = BATCH * LENGTH, HEAD_DIM = 64, HEADER_BYTES = 1024 };

/* The tokens, after a header, from the file; without a file, random ones. */
static void next_tokens(FILE *file, Random *random, int64_t vocabulary, int32_t *tokens)
{
    for (int i = 0; i <= TOKENS; i++) {
        uint16_t token = (uint16_t)random_integer(random, 0, vocabulary);
        if (file && fread(&token, sizeof token, 1, file) != 1) {
            fprintf(stderr, "--tokens has too few tokens, expected %d per step and one more\n",
                    TOKENS);
            exit(2);
        }
        tokens[i] = token;
    }
    if (file) /* a step's last target is the next step's first token */
        fseek(file, -(long)sizeof(uint16_t), SEEK_CUR);
}

typedef struct Sizes {
    int64_t layers, heads, vocabulary, context;
} Sizes;

typedef struct Gpt2 {
    Params *params;
    Embedding tokens, positions;
    Transformer transformer;
    Optimizer *optimizer;
} Gpt2;

static Gpt2 gpt2_new(Device *device, Sizes sizes)
{
    const Initializer normal = { INITIAL_NORMAL, 0.02 };
    const int64_t width = sizes.heads * HEAD_DIM;
    Gpt2 m = { .params = params_new(device, /*seed*/ 1) };
    m.tokens = nn_embedding_with(m.params, "wte", sizes.vocabulary, width, normal);
    m.positions = nn_embedding_with(m.params, "wpe", sizes.context, width, normal);
    const TransformerConfig config = { .layers = sizes.layers,
                                       .heads = sizes.heads,
                                       .head_dim = HEAD_DIM,
                                       .attention = nn_causal_softmax_attention(
                                           m.params, (CausalSoftmaxConfig){ 0 }),
                                       .activation = ACTIVATION_GELU_TANH,
                                       .pre_norm = true,
                                       .initial_std = 0.02 };
    m.transformer = nn_transformer(m.params, "", config);
    m.optimizer = optim_adamw(m.params, optim_adam_config(1e-4));
    return m;
}

/* The loss of a step on the tokens [BATCH, LENGTH] and one more. */
static double gpt2_step(const Gpt2 *m, Tape *tape, const int32_t *window)
{
    Tensor *x = tape_input_i32(tape, window, shape(BATCH, LENGTH));
    x = nn_embedding_forward(tape, &m->tokens, x);
    x = op_add(tape, x, op_slice(tape, m->positions.weight, 0, 0, LENGTH));
    x = nn_transformer_forward(tape, &m->transformer, x, (AttentionOptions){ 0 });
    Tensor *targets = tape_input_i32(tape, window + 1, shape(BATCH, LENGTH));
    Tensor *loss = /* with tied weights */
        op_linear_cross_entropy(tape, x, m->tokens.weight, NULL, targets, NULL);
    tape_backward(tape, loss);
    optim_step(m->optimizer);
    const double value = tensor_item(loss);
    tape_reset(tape);
    return value;
}

/* Prints the steps and their median time. */
static void train(BenchOptions *options, const Gpt2 *model, FILE *file, int64_t vocabulary,
                  int64_t steps)
{
    Tape *tape = bench_tape(options);
    Random random = random_new(/*seed*/ 1, random_stream("tokens"));
    double *times = calloc((size_t)steps, sizeof *times);
    if (!times)
        exit(EXIT_FAILURE);
    for (int64_t step = 0; step < steps; step++) {
        const double start = bench_seconds();
        int32_t window[TOKENS + 1];
        next_tokens(file, &random, vocabulary, window);
        const double loss = gpt2_step(model, tape, window);
        times[step] = 1e3 * (bench_seconds() - start);
        printf("step %lld: loss %.6f (%.2f ms)\n", (long long)step, loss, times[step]);
        fflush(stdout);
    }
    const Timing ms = bench_timing(times, (int)steps);
    const DeviceMemory memory = device_memory(options->device);
    printf("median %.2f ms (%.2f to %.2f), device memory %.1f MiB (%.1f reserved)\n", ms.median,
           ms.min, ms.max, (double)memory.peak / (1 << 20), (double)memory.reserved / (1 << 20));
    bench_record(options, "\"ms\": %.5g, \"ms_min\": %.5g, \"ms_max\": %.5g, \"where\": \"%s\"",
                 ms.median, ms.min, ms.max, bench_where(options).text);
    free(times);
    tape_free(tape);
}

int main(int argc, char **argv)
{
    Sizes sizes = { .layers = 12, .heads = 12, .vocabulary = 50257, .context = 1024 };
    int64_t steps = 5;
    const char *weights = NULL, *path = NULL;
    const BenchOption more[] = {
        { "layers", "number of layers", &sizes.layers, 1, NULL },
        { "heads", "number of heads, of 64 channels each", &sizes.heads, 1, NULL },
        { "vocabulary", "number of tokens", &sizes.vocabulary, 1, NULL },
        { "context", "number of positions, at least 64", &sizes.context, LENGTH, NULL },
        { "steps", "number of steps", &steps, 1, NULL },
        { "weights", "a safetensors file (without: random weights)", NULL, 0, &weights },
        { "tokens", "a file of llm.c's format (without: random tokens)", NULL, 0, &path },
        { 0 },
    };
    BenchOptions options = bench_begin_with(argc, argv, "training steps of GPT-2", more);
    FILE *file = path ? fopen(path, "rb") : NULL;
    if (path && (!file || fseek(file, HEADER_BYTES, SEEK_SET))) {
        fprintf(stderr, "--tokens is %s, expected a file of tokens in llm.c's format\n", path);
        return 2;
    }
    Gpt2 model = gpt2_new(options.device, sizes);
    if (weights && !params_load(model.params, weights)) {
        fprintf(stderr, "--weights: %s\n", tapegrad_error());
        return 2;
    }
    train(&options, &model, file, sizes.vocabulary, steps);
    if (file)
        fclose(file);
    optim_free(model.optimizer);
    params_free(model.params);
    bench_end(&options);
    return EXIT_SUCCESS;
}
