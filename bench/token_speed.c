/* Seconds per generated token against context length, as in Linear Transformers Are Faster (Buckman
 * and Gelada 2024): the decode step of a transformer whose state holds this many positions. Softmax
 * attention reads its whole KV cache at each step; the state of the other kinds has a constant
 * size. One sequence.
 *   hybrid        three layers of delta, then one of softmax
 *   decay         linear attention with a learned decay; unnormalized: and without its normalizer
 *   delta         the delta rule with a learned decay */
#include "bench/figure.h"

#include <stdlib.h>

static int64_t layers = 4, heads = 4, head_dim = 64;

/* -------------------------------------------------------------------------- one point's process */
enum { SOFTMAX, HYBRID, LINEAR, DECAY, UNNORMALIZED, DELTA, METHODS };
static const Line lines[METHODS] = {
    [SOFTMAX] = { .name = "softmax", .title = "softmax", .colour = "#b2182b" },
    [HYBRID] = { .name = "hybrid", .title = "hybrid", .colour = "#e08214" },
    [LINEAR] = { .name = "linear", .title = "linear", .colour = "#2166ac" },
    [DECAY] = { .name = "decay", .title = "decay", .colour = "#1b7837" },
    [UNNORMALIZED] = { .name = "unnormalized", .title = "unnormalized", .colour = "#762a83" },
    [DELTA] = { .name = "delta", .title = "delta", .colour = "#333333" },
};

static TransformerConfig config_of(int method)
{
    TransformerConfig config = { .layers = layers,
                                 .heads = heads,
                                 .head_dim = head_dim,
                                 .pre_norm = true,
                                 .activation = ACTIVATION_GELU };
    config.attention = method == SOFTMAX                     ? ATTENTION_CAUSAL_SOFTMAX
                       : method == DELTA || method == HYBRID ? ATTENTION_DELTA_RULE
                                                             : ATTENTION_CAUSAL_LINEAR;
    if (method != SOFTMAX && method != LINEAR)
        config.decay = DECAY_LEARNED;
    config.unnormalized = method == UNNORMALIZED;
    for (int i = 3; method == HYBRID && i < NN_MAX_LAYERS; i += 4)
        config.layer_attention[i] = ATTENTION_CAUSAL_SOFTMAX;
    return config;
}

typedef struct Model {
    TransformerState *state;
    Tensor *x; /* [1, width] */
} Model;

static void step(void *context)
{
    const Model *m = context;
    nn_transformer_step(m->state, m->x);
}

/* The median of STEPS steps from position N on. */
static void measure_point(const BenchOptions *options, const Figure *figure)
{
    enum { WARM_UP = 2, STEPS = 32 };
    const int64_t width = heads * head_dim, N = figure->length;
    Params *params = params_new(options->device, 1);
    const Transformer transformer =
        nn_transformer(params, "", config_of(figure_method(figure, lines, METHODS)));
    const GenerationConfig generation = { .sequences = 1, .max_length = N + WARM_UP + STEPS };
    Tape *tape = bench_tape(options), *steps = bench_tape(options);
    Model m = { nn_transformer_state(&transformer, generation),
                tape_persistent(steps, shape(1, width)) };
    Tensor *prompt = tape_persistent(tape, shape(1, N, width));
    bench_fill(m.x, 1);
    bench_fill(prompt, 2);
    tape_set_recording(tape, false), tape_set_training(tape, false);
    nn_transformer_prefill(tape, m.state, prompt, NULL);
    tape_free(tape); /* with the prompt */
    double ms[STEPS];
    for (int i = -WARM_UP; i < STEPS; i++) {
        const double start = bench_seconds();
        tape_replay(steps, step, &m);
        device_wait(options->device);
        if (i >= 0)
            ms[i] = 1e3 * (bench_seconds() - start);
    }
    figure_print(bench_timing(ms, STEPS).median, (double)device_memory(options->device).current);
    nn_transformer_state_free(m.state);
    tape_free(steps), params_free(params);
}

/* ----------------------------------------------------------------------------------- the figure */
int main(int argc, char **argv)
{
    static Figure figure = { .shortest = 256,
                             .longest = 32768,
                             .limit = 120,
                             .output = "token_speed",
                             .length = 256,
                             .batch = 1 };
    const BenchOption more[] = {
        FIGURE_OPTIONS(figure),
        { "layers", "number of layers (4)", &layers, 1, NULL },
        { "heads", "number of heads (4)", &heads, 1, NULL },
        { "head-dim", "size of a head (64)", &head_dim, 1, NULL },
        { 0 },
    };
    const Command again = command_again(argc, argv);
    BenchOptions options =
        bench_begin_with(argc, argv, "seconds per generated token against context length", more);
    if (figure.method) {
        measure_point(&options, &figure);
        return EXIT_SUCCESS;
    }
    snprintf(figure.sizes, sizeof figure.sizes, "%lld layers of %lld heads of %lld, one sequence",
             (long long)layers, (long long)heads, (long long)head_dim);
    figure_run(&figure, &options, lines, METHODS, again, argv[0],
               (Panel){ "A decode step of a transformer", "time per token, ms", "2", NULL });
    return EXIT_SUCCESS;
}
