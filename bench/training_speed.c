/* Seconds per training step against context length, as in Linear Transformers Are Faster (Buckman
 * and Gelada 2024), of a decoder like GPT-2 (Radford et al. 2019): pre-norm, gelu, learned
 * positions, a tied head; AdamW; one sequence per step. The methods are softmax attention and each
 * form of linear attention.
 *
 * The default decoder is small on the CPU; on a GPU it is the smallest GPT-2, with 124 million
 * weights. */
#include "bench/figure.h"

#include <stdlib.h>
#include <string.h>

/* 0: the default of the device. */
static int64_t vocabulary, layers, heads, head_dim;

static void choose_sizes(const BenchOptions *options)
{
    const bool small = !device_is_cuda(options->device);
    vocabulary = vocabulary ? vocabulary : small ? 256 : 50257;
    layers = layers ? layers : small ? 4 : 12;
    heads = heads ? heads : small ? 4 : 12;
    head_dim = head_dim ? head_dim : small ? 32 : 64;
}

/* -------------------------------------------------------------------------- one point's process */
enum { SOFTMAX, QUADRATIC, RECURRENT, CHUNKED, METHODS };
static const Line lines[METHODS] = {
    [SOFTMAX] = { .name = "softmax", .title = "softmax", .colour = "#b2182b" },
    [QUADRATIC] = { .name = "quadratic", .title = "linear, quadratic form", .colour = "#e08214" },
    [RECURRENT] = { .name = "recurrent", .title = "linear, recurrent form", .colour = "#1b7837" },
    [CHUNKED] = { .name = "chunked", .title = "linear, chunked form", .colour = "#2166ac" },
};
static const AttentionForm forms[METHODS] = { FORM_BEST, FORM_QUADRATIC, FORM_RECURRENT,
                                              FORM_CHUNKED };

typedef struct Model {
    Params *params;
    Embedding embedding; /* [vocabulary, width] */
    Tensor *positions;   /* [N, width] */
    Transformer transformer;
    Optimizer *optimizer;
    Tape *tape;
    Tensor *tokens, *targets; /* [1, N] */
} Model;

static void step(void *context)
{
    const Model *m = context;
    Tensor *x = nn_embedding_forward(m->tape, &m->embedding, m->tokens);
    x = op_add(m->tape, x, m->positions);
    x = nn_transformer_forward(m->tape, &m->transformer, x, (AttentionOptions){ 0 });
    Tensor *logits = op_matmul_nt(m->tape, x, m->embedding.weight);
    tape_backward(m->tape, op_cross_entropy(m->tape, logits, m->targets, NULL));
    params_clip_gradients(m->params, 1);
    optim_step(m->optimizer);
}

/* Random tokens; each is the target of the previous position. */
static void write_tokens(const Model *m, int64_t length)
{
    int32_t *text = malloc((size_t)(length + 1) * sizeof *text);
    if (!text)
        exit(EXIT_FAILURE);
    Random random = random_new(1, 1);
    for (int64_t i = 0; i <= length; i++)
        text[i] = (int32_t)random_integer(&random, 0, vocabulary);
    tensor_write_i32(m->tokens, text);
    tensor_write_i32(m->targets, text + 1);
    free(text);
}

static Model model_new(const BenchOptions *options, int method, const Figure *figure)
{
    const Initializer normal = { INITIAL_NORMAL, 0.02 };
    const int64_t width = heads * head_dim;
    const Shape tokens = shape(figure->batch, figure->length);
    Model m = { .params = params_new(options->device, 1), .tape = bench_tape(options) };
    m.embedding.weight = params_add(m.params, "embedding", shape(vocabulary, width), normal);
    m.positions = params_add(m.params, "positions", shape(figure->length, width), normal);
    m.transformer = nn_transformer(m.params, "transformer",
                                   (TransformerConfig){ .layers = layers,
                                                        .heads = heads,
                                                        .head_dim = head_dim,
                                                        .attention = method == SOFTMAX
                                                                         ? ATTENTION_CAUSAL_SOFTMAX
                                                                         : ATTENTION_CAUSAL_LINEAR,
                                                        .form = forms[method],
                                                        .pre_norm = true,
                                                        .activation = ACTIVATION_GELU });
    AdamConfig config = optim_adam_config(1e-3);
    config.weight_decay = 0.1;
    m.optimizer = optim_adamw(m.params, config);
    m.tokens = tape_persistent_i32(m.tape, tokens);
    m.targets = tape_persistent_i32(m.tape, tokens);
    return m;
}

static void measure_point(const BenchOptions *options, const Figure *figure)
{
    Model m = model_new(options, figure_method(figure, lines, METHODS), figure);
    write_tokens(&m, figure->length);
    const double ms = figure_time(options, m.tape, step, &m);
    figure_print(ms, (double)device_memory(options->device).peak);
    tape_free(m.tape);
    optim_free(m.optimizer);
    params_free(m.params);
}

/* ----------------------------------------------------------------------------------- the figure */
int main(int argc, char **argv)
{
    static Figure figure = { .shortest = 256,
                             .longest = 65536,
                             .limit = 120,
                             .output = "training_speed",
                             .length = 256,
                             .batch = 1 };
    const BenchOption more[] = {
        FIGURE_OPTIONS(figure),
        { "vocabulary", "number of tokens; 0: 256, on a GPU 50257", &vocabulary, 0, NULL },
        { "layers", "number of layers; 0: 4, on a GPU 12", &layers, 0, NULL },
        { "heads", "number of heads; 0: 4, on a GPU 12", &heads, 0, NULL },
        { "head-dim", "size of a head; 0: 32, on a GPU 64", &head_dim, 0, NULL },
        { 0 },
    };
    const Command again = command_again(argc, argv);
    BenchOptions options =
        bench_begin_with(argc, argv, "seconds per training step against context length", more);
    choose_sizes(&options);
    if (figure.method) {
        measure_point(&options, &figure);
        return EXIT_SUCCESS;
    }
    snprintf(figure.sizes, sizeof figure.sizes,
             "%lld layers of %lld heads of %lld, %lld symbols, one sequence", (long long)layers,
             (long long)heads, (long long)head_dim, (long long)vocabulary);
    figure_run(&figure, &options, lines, METHODS, again, argv[0],
               (Panel){ "A training step of a decoder", "time per step, s", "($2/1000)" });
    return EXIT_SUCCESS;
}
