/* Shared by the tests of generation: a transformer, its states and sequences, and decode steps that
 * must give the results of the parallel form. */
#ifndef TAPEGRAD_DECODE_TESTS_GENERATION_H
#define TAPEGRAD_DECODE_TESTS_GENERATION_H

#include "tests/kinds.h"
#include "tests/support.h"

#include <stdlib.h>
#include <string.h>

#ifdef TAPEGRAD_DOUBLE
#define TOLERANCE 1e-11
#else
#define TOLERANCE 2e-5
#endif
#define BF16_TOLERANCE 0.01 /* with keys and values in bf16 */

enum { LENGTH = 6, MANY = 70 }; /* on the CPU, two threads split a batch of MANY */

static Device *device;
static Tape *tape;
static Params *params;
static Transformer transformer;
static int64_t width;

/* Adds 1 to query and key bias: queries and keys near 1 keep every normalizer away from 0, with any
 * feature map. */
static inline void shift_biases(int64_t layers)
{
    for (int i = 0; i < 2 * layers; i++) {
        char name[64];
        snprintf(name, sizeof name, "layers.%d.attention.%s.bias", i / 2, i % 2 ? "key" : "query");
        Tensor *bias = params_find(params, name);
        if (!bias) /* LSH attention has no bias of keys */
            continue;
        Real *values = test_values(bias);
        for (int64_t j = 0; j < tensor_count(bias); j++)
            values[j] += 1;
        tensor_write(bias, values);
    }
}

/* Sink logits that differ by head. */
static inline void set_sink_logits(int64_t layers)
{
    for (int i = 0; i < layers; i++) {
        char name[64];
        snprintf(name, sizeof name, "layers.%d.attention.sink_logits", i);
        Tensor *sinks = params_find(params, name);
        if (sinks)
            tensor_write(sinks, test_normal(40 + (uint64_t)i, tensor_count(sinks)));
    }
}

static inline void begin(TestConfig config)
{
    device = test_device();
    tape = tape_new(device);
    tape_set_recording(tape, false);
    tape_set_training(tape, false);
    params = params_new(device, 5);
    config.layers = config.layers ? config.layers : 2;
    config.heads = config.heads ? config.heads : 3;
    config.head_dim = config.head_dim ? config.head_dim : 5;
    config.feed_forward = config.feed_forward ? config.feed_forward : 37;
    width = config.heads * config.head_dim;
    transformer = nn_transformer(params, "", test_config(params, config));
    shift_biases(config.layers);
    set_sink_logits(config.layers);
}

static inline void end(void)
{
    tape_free(tape);
    params_free(params);
    ck_assert_uint_eq(device_memory(device).current, 0);
}

static GenerationConfig stored; /* how new_state stores the weights */

static inline TransformerState *new_state(int64_t sequences, int64_t max_length)
{
    GenerationConfig config = stored;
    config.sequences = sequences;
    config.max_length = max_length;
    return nn_transformer_state(&transformer, config);
}

/* Weights in Real and in 8 bits and, in float, in bf16. */
enum { STORED = sizeof(Real) == sizeof(float) ? 3 : 2 };
static const GenerationConfig all_stored[] = { { 0 },
                                               { .int8_weights = true },
                                               { .precision = PRECISION_BF16 } };

/* Whether the device has the CPU's engine, which reads weights in bf16 and in 8 bits. */
static inline bool has_cpu_engine(const Device *on)
{
    return strncmp(device_name(on), "cpu", 3) == 0;
}

static inline int stored_on(const Device *on)
{
    return has_cpu_engine(on) ? STORED : 1;
}

static const TestConfig linear = { 0 }, softmax = { .attention = KIND_CAUSAL_SOFTMAX };
/* Without gates; with a decay, by the CPU's engine, elsewhere by operations; then, always by
 * operations, with other gates and with layers that differ. */
static const TestConfig kinds[] = {
    { 0 },
    { .attention = KIND_CAUSAL_SOFTMAX },
    { .decay = DECAY_LEARNED, .pre_norm = true },
    { .decay = DECAY_CONSTANT, .features = FEATURES_POLYNOMIAL },
    { .decay = DECAY_CONSTANT,
      .unnormalized = true,
      .features = FEATURE_MAP_IDENTITY,
      .output_gate = true },
    { .features = FEATURES_POLYNOMIAL, .decay = DECAY_LEARNED, .convolution = 2 },
    { .attention = KIND_DELTA_RULE, .max_beta = 2 },
    { .attention = KIND_GATED_LINEAR, .decay = DECAY_CONSTANT, .output_gate = true },
    { .attention = KIND_DELTA_RULE, .decay_rank = 3, .convolution = 2 },
    { .attention = KIND_CAUSAL_SOFTMAX, .rotary_dims = 4 },
    { .rotary_dims = 2, .rotary_base = 100, .pre_norm = true },
    { .attention = KIND_CAUSAL_SOFTMAX, .rotary_dims = 2, .convolution = 3, .output_gate = true },
    { .attention = KIND_CAUSAL_SOFTMAX, .softmax = { .window = 2, .sinks = 1 } },
    { .attention = KIND_CAUSAL_SOFTMAX, .softmax = { .window = 3 }, .rotary_dims = 4 },
    { .attention = KIND_CAUSAL_SOFTMAX, .softmax = { .learned_sink = true } },
    { .attention = KIND_CAUSAL_SOFTMAX,
      .softmax = { .window = 2, .learned_sink = true },
      .rotary_dims = 2,
      .output_gate = true },
    { .layers = 3,
      .attention = KIND_DELTA_RULE,
      .decay = DECAY_LEARNED,
      .convolution = 4,
      .output_gate = true,
      .pre_norm = true,
      .rotary_dims = 2,
      .softmax = { .window = 1, .sinks = 2 },
      .softmax_layer = 1 },
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* ------------------------------------------------------------------------------------ sequences */
typedef struct Sequences {
    int64_t B, N;
    Real *x, *out; /* [B, N, width]: random values, and the results of the parallel form */
} Sequences;

static inline Sequences sequences_new(int64_t B, int64_t N)
{
    Sequences s = { B, N, test_normal(31, B * N * width), NULL };
    Tensor *x = tape_input(tape, s.x, shape(B, N, width));
    s.out = test_values(nn_transformer_forward(tape, &transformer, x, (AttentionOptions){ 0 }));
    tape_reset(tape);
    return s;
}

/* A transformer, B sequences and their state of max_length positions. */
typedef struct Setup {
    Sequences s;
    TransformerState *state;
} Setup;

static inline Setup begin_with(TestConfig config, int64_t B, int64_t max_length)
{
    begin(config);
    const Sequences s = sequences_new(B, LENGTH);
    return (Setup){ s, new_state(B, max_length) };
}

static inline void end_with(Setup setup)
{
    nn_transformer_state_free(setup.state);
    end();
}

/* Row n[b] of each sequence b of `all`, which is x or out: [B, width]. */
static inline Real *ragged(Sequences s, const Real *all, const int32_t *n)
{
    Real *rows = test_normal(0, s.B * width);
    for (int64_t b = 0; b < s.B; b++)
        memcpy(rows + b * width, all + (b * s.N + n[b]) * width, (size_t)width * sizeof *rows);
    return rows;
}

/* Positions n to n + count - 1 of `all`: [B, count, width]. */
static inline Real *cut(Sequences s, const Real *all, int64_t n, int64_t count)
{
    Real *piece = test_normal(0, s.B * count * width);
    for (int64_t b = 0; b < s.B; b++)
        memcpy(piece + b * count * width, all + (b * s.N + n) * width,
               (size_t)(count * width) * sizeof *piece);
    return piece;
}

/* x [B, width] and [B, N, width] on the tape. */
static inline Tensor *rows(const Real *x, int64_t B)
{
    return tape_input(tape, x, shape(B, width));
}

static inline Tensor *prompt(const Real *x, int64_t B, int64_t N)
{
    return tape_input(tape, x, shape(B, N, width));
}

/* Decode steps for positions n to end - 1; each must match the parallel form. */
static inline void step_through(TransformerState *state, Sequences s, int64_t n, int64_t end)
{
    for (; n < end; n++) {
        const Real *out = test_values(nn_transformer_step(state, rows(cut(s, s.x, n, 1), s.B)));
        assert_close(out, cut(s, s.out, n, 1), s.B * width, TOLERANCE);
        tape_reset(tape);
    }
}

/* A decode step at position n[b] of each sequence b. */
static inline void ragged_step(TransformerState *state, Sequences s, const int32_t *n)
{
    const Real *out = test_values(nn_transformer_step(state, rows(ragged(s, s.x, n), s.B)));
    assert_close(out, ragged(s, s.out, n), s.B * width, TOLERANCE);
    tape_reset(tape);
}

static inline void prefill(TransformerState *state, Sequences s, int64_t n, int64_t count)
{
    Tensor *x = prompt(cut(s, s.x, n, count), s.B, count);
    const Real *out = test_values(nn_transformer_prefill(tape, state, x, NULL));
    assert_close(out, cut(s, s.out, n, count), s.B * count * width, TOLERANCE);
    tape_reset(tape);
}

static inline void assert_positions(const TransformerState *state, const int32_t *expected)
{
    Tensor *positions = nn_transformer_state_positions(state);
    ck_assert_mem_eq(test_integers(positions), expected,
                     (size_t)tensor_count(positions) * sizeof *expected);
}

#endif
