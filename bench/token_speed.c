/* Seconds per generated token against context length, as in Linear Transformers Are Faster (Buckman
 * and Gelada 2024): the decode step of a transformer whose state holds this many positions. Softmax
 * attention reads its whole KV cache at each step; the state of the other kinds has a constant
 * size. One sequence.
 *   lsh-4         LSH attention of 4 rounds, which has no state: a pass over all positions
 *   polynomial    linear attention with features of degree 2
 *   hybrid        three layers of delta, then one of softmax
 *   decay         linear attention with a learned decay; unnormalized: and without its normalizer
 *   delta         the delta rule with a learned decay */
#include "bench/figure.h"

#include <stdlib.h>

static int64_t layers = 4, heads = 4, head_dim = 64;

/* -------------------------------------------------------------------------- one point's process */
enum { SOFTMAX, LSH, HYBRID, LINEAR, POLYNOMIAL, DECAY, UNNORMALIZED, DELTA, METHODS };
static const Line lines[METHODS] = {
    [SOFTMAX] = { .name = "softmax", .title = "softmax", .color = "#b2182b" },
    [LSH] = { .name = "lsh-4", .title = "lsh-4", .color = "#276419" },
    [HYBRID] = { .name = "hybrid", .title = "hybrid", .color = "#e08214" },
    [LINEAR] = { .name = "linear", .title = "linear", .color = "#2166ac" },
    [POLYNOMIAL] = { .name = "polynomial", .title = "polynomial", .color = "#67a9cf" },
    [DECAY] = { .name = "decay", .title = "decay", .color = "#8c510a" },
    [UNNORMALIZED] = { .name = "unnormalized", .title = "unnormalized", .color = "#762a83" },
    [DELTA] = { .name = "delta", .title = "delta", .color = "#333333" },
};

static const AttentionKind *attention_of(Params *params, int method)
{
    switch (method) {
    case SOFTMAX:
        return nn_causal_softmax_attention(params, (CausalSoftmaxConfig){ 0 });
    case LSH:
        return nn_causal_lsh_attention(params, (LshConfig){ .rounds = 4 });
    case POLYNOMIAL:
        return nn_feature_attention(params, (FeatureConfig){ .features = FEATURES_POLYNOMIAL });
    case HYBRID:
    case DELTA:
        return nn_delta_rule_attention(params, (DeltaRuleConfig){ 0 });
    default:
        return nn_causal_linear_attention(
            params, (CausalLinearConfig){ .unnormalized = method == UNNORMALIZED });
    }
}

static TransformerConfig config_of(Params *params, int method)
{
    TransformerConfig config = { .layers = layers,
                                 .heads = heads,
                                 .head_dim = head_dim,
                                 .pre_norm = true,
                                 .activation = ACTIVATION_GELU,
                                 .attention = attention_of(params, method) };
    if (method == HYBRID || method >= DECAY)
        config.attention = nn_gated_attention(
            params, (GatedConfig){ .inner = config.attention, .decay = DECAY_LEARNED });
    for (int i = 3; method == HYBRID && i < NN_MAX_LAYERS; i += 4)
        config.layer_attention[i] = nn_causal_softmax_attention(params, (CausalSoftmaxConfig){ 0 });
    return config;
}

typedef struct Model {
    Transformer transformer;
    TransformerState *state;
    Tape *tape;
    Tensor *x; /* [1, width]; for pass [1, N, width] */
} Model;

static void step(void *context)
{
    const Model *m = context;
    nn_transformer_step(m->state, m->x);
}

static void pass(void *context)
{
    const Model *m = context;
    nn_transformer_forward(m->tape, &m->transformer, m->x, (AttentionOptions){ 0 });
}

static Tape *tape_of_inference(const BenchOptions *options)
{
    Tape *tape = bench_tape(options);
    tape_set_recording(tape, false);
    tape_set_training(tape, false);
    return tape;
}

static void measure_pass(const BenchOptions *options, const Figure *figure, int method)
{
    Params *params = params_new(options->device, 1);
    Model m = { .transformer = nn_transformer(params, "", config_of(params, method)),
                .tape = tape_of_inference(options) };
    m.x = tape_persistent(m.tape, shape(1, figure->length, heads * head_dim));
    bench_fill(m.x, 1);
    const double ms = figure_time(options, m.tape, pass, &m);
    figure_print(ms, (double)device_memory(options->device).peak);
    tape_free(m.tape);
    params_free(params);
}

/* The median of STEPS steps from position N on. */
static void measure_steps(const BenchOptions *options, const Figure *figure, int method)
{
    enum { WARM_UP = 2, STEPS = 32 };
    const int64_t width = heads * head_dim, N = figure->length;
    Params *params = params_new(options->device, 1);
    const GenerationConfig generation = { .sequences = 1, .max_length = N + WARM_UP + STEPS };
    Tape *tape = tape_of_inference(options), *steps = bench_tape(options);
    Model m = { .transformer = nn_transformer(params, "", config_of(params, method)),
                .x = tape_persistent(steps, shape(1, width)) };
    m.state = nn_transformer_state(&m.transformer, generation);
    Tensor *prompt = tape_persistent(tape, shape(1, N, width));
    bench_fill(m.x, 1);
    bench_fill(prompt, 2);
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
    tape_free(steps);
    params_free(params);
}

static void measure_point(const BenchOptions *options, const Figure *figure)
{
    const int method = figure_method(figure, lines, METHODS);
    (method == LSH ? measure_pass : measure_steps)(options, figure, method);
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
        { "layers", "number of layers", &layers, 1, NULL },
        { "heads", "number of heads", &heads, 1, NULL },
        { "head-dim", "size of a head", &head_dim, 1, NULL },
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
