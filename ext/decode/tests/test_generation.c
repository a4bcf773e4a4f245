/* Generation: every decode step gives the result of the parallel form at its position. */
#include "tests/kinds.h"
#include "tests/support.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef TAPEGRAD_DOUBLE
#define TOLERANCE 1e-11
#else
#define TOLERANCE 2e-5
#endif

/* The error sentences' beginnings, and one of them. */
#define STATE "nn_transformer_state: "
#define STEP "nn_transformer_step: "
#define PREFILL "nn_transformer_prefill: "
#define COPY "nn_transformer_state_copy: "
#define FULL STEP "sequence 0 already has max_length (6) positions"

#define BF16_TOLERANCE 0.01 /* with keys and values in bf16 */

enum { LENGTH = 6, MANY = 70 }; /* on the CPU, two threads split a batch of MANY */

/* Counts the calls of malloc in programs and libraries. The sanitizers have a malloc of their own,
 * and the emulated CUDA device allocates memory for its threads. */
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
static int64_t mallocs;
void *__libc_malloc(size_t bytes);
void *malloc(size_t bytes)
{
    __atomic_fetch_add(&mallocs, 1, __ATOMIC_RELAXED);
    return __libc_malloc(bytes);
}
#else
static const int64_t mallocs;
#endif

static Device *device;
static Tape *tape;
static Params *params;
static Transformer transformer;
static int64_t width;

/* Adds 1 to query and key bias: queries and keys near 1 keep every normalizer away from 0, with any
 * feature map. */
static void shift_biases(int64_t layers)
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

static void begin(TestConfig config)
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
}

static void end(void)
{
    tape_free(tape);
    params_free(params);
    ck_assert_uint_eq(device_memory(device).current, 0);
}

static GenerationConfig stored; /* how new_state stores the weights */

static TransformerState *new_state(int64_t sequences, int64_t max_length)
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
static bool has_cpu_engine(const Device *on)
{
    return strcmp(device_name(on), "cpu") == 0;
}

static int stored_on(const Device *on)
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
    { .attention = KIND_CAUSAL_SOFTMAX, .rotary_dims = 4 },
    { .rotary_dims = 2, .rotary_base = 100, .pre_norm = true },
    { .attention = KIND_CAUSAL_SOFTMAX, .rotary_dims = 2, .convolution = 3, .output_gate = true },
    { .layers = 3,
      .attention = KIND_DELTA_RULE,
      .decay = DECAY_LEARNED,
      .convolution = 4,
      .output_gate = true,
      .pre_norm = true,
      .rotary_dims = 2,
      .softmax_layer = 1 },
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* ------------------------------------------------------------------------------------ sequences */
typedef struct Sequences {
    int64_t B, N;
    Real *x, *out; /* [B, N, width]: random values, and the results of the parallel form */
} Sequences;

static Sequences sequences_new(int64_t B, int64_t N)
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

static Setup begin_with(TestConfig config, int64_t B, int64_t max_length)
{
    begin(config);
    const Sequences s = sequences_new(B, LENGTH);
    return (Setup){ s, new_state(B, max_length) };
}

static void end_with(Setup setup)
{
    nn_transformer_state_free(setup.state);
    end();
}

/* Row n[b] of each sequence b of `all`, which is x or out: [B, width]. */
static Real *ragged(Sequences s, const Real *all, const int32_t *n)
{
    Real *rows = test_normal(0, s.B * width);
    for (int64_t b = 0; b < s.B; b++)
        memcpy(rows + b * width, all + (b * s.N + n[b]) * width, (size_t)width * sizeof *rows);
    return rows;
}

/* Positions n to n + count - 1 of `all`: [B, count, width]. */
static Real *cut(Sequences s, const Real *all, int64_t n, int64_t count)
{
    Real *piece = test_normal(0, s.B * count * width);
    for (int64_t b = 0; b < s.B; b++)
        memcpy(piece + b * count * width, all + (b * s.N + n) * width,
               (size_t)(count * width) * sizeof *piece);
    return piece;
}

/* x [B, width] and [B, N, width] on the tape. */
static Tensor *rows(const Real *x, int64_t B)
{
    return tape_input(tape, x, shape(B, width));
}

static Tensor *prompt(const Real *x, int64_t B, int64_t N)
{
    return tape_input(tape, x, shape(B, N, width));
}

/* Decode steps for positions n to end - 1; each must match the parallel form. */
static void step_through(TransformerState *state, Sequences s, int64_t n, int64_t end)
{
    for (; n < end; n++) {
        const Real *out = test_values(nn_transformer_step(state, rows(cut(s, s.x, n, 1), s.B)));
        assert_close(out, cut(s, s.out, n, 1), s.B * width, TOLERANCE);
        tape_reset(tape);
    }
}

/* A decode step at position n[b] of each sequence b. */
static void ragged_step(TransformerState *state, Sequences s, const int32_t *n)
{
    const Real *out = test_values(nn_transformer_step(state, rows(ragged(s, s.x, n), s.B)));
    assert_close(out, ragged(s, s.out, n), s.B * width, TOLERANCE);
    tape_reset(tape);
}

static void prefill(TransformerState *state, Sequences s, int64_t n, int64_t count)
{
    Tensor *x = prompt(cut(s, s.x, n, count), s.B, count);
    const Real *out = test_values(nn_transformer_prefill(tape, state, x, NULL));
    assert_close(out, cut(s, s.out, n, count), s.B * count * width, TOLERANCE);
    tape_reset(tape);
}

static void assert_positions(const TransformerState *state, const int32_t *expected)
{
    Tensor *positions = nn_transformer_state_positions(state);
    ck_assert_mem_eq(test_integers(positions), expected,
                     (size_t)tensor_count(positions) * sizeof *expected);
}

/* ------------------------------------------------------------------------------- every position */
static void check_positions(TestConfig config, int64_t B)
{
    if (B == MANY)
        test_set_threads(2);
    const Setup u = begin_with(config, B, LENGTH);
    step_through(u.state, u.s, 0, LENGTH);
    end_with(u);
}

TEST(a_step_is_the_parallel_form_at_its_position)
{
    static const int64_t batches[] = { 1, 3, 17, MANY };
    for (int i = 0; i < 12; i++)
        check_positions(kinds[i % 3], batches[i / 3]);
}

TEST(with_gates_and_with_layers_that_differ)
{
    for (int i = 3; i < KINDS; i++)
        check_positions(kinds[i], 1 + i);
}

TEST(with_every_feature_map)
{
    for (int features = 0; features <= FEATURES_RANDOM; features++) {
        check_positions((TestConfig){ .features = features }, 2);
        check_positions((TestConfig){ .features = features, .head_dim = 17, .heads = 2 }, 3);
    }
    check_positions((TestConfig){ .features = FEATURES_RANDOM, .projections = 7 }, 2);
}

TEST(with_every_arrangement_of_a_layer)
{
    for (int bits = 0; bits < 24; bits++)
        check_positions(
            (TestConfig){ .attention = bits & 1 ? KIND_CAUSAL_SOFTMAX : KIND_CAUSAL_LINEAR,
                          .pre_norm = bits & 2,
                          .activation = (Activation)(bits / 8),
                          .no_final_norm = bits & 4 },
            3);
}

static void check_heads(TestConfig config, int64_t heads, int64_t head_dim, int64_t B)
{
    config.heads = heads;
    config.head_dim = head_dim;
    config.no_final_norm = config.pre_norm = heads * head_dim == 1; /* norms of 1 are 0 */
    check_positions(config, B);
}

TEST(with_ragged_and_with_whole_sizes)
{
    static const int64_t sizes[][2] = { { 1, 1 }, { 1, 7 }, { 2, 16 }, { 2, 33 }, { 5, 12 } };
    for (int i = 0; i < 15; i++)
        check_heads(kinds[i % 3], sizes[i / 3][0], sizes[i / 3][1], 5);
}

/* On CUDA: heads whose state exceeds shared memory, heads with more columns than a block has
 * threads, and heads with about the same number. */
TEST(with_heads_whose_state_exceeds_shared_memory)
{
    const TestConfig polynomial = { .layers = 1, .features = FEATURES_POLYNOMIAL };
    const TestConfig with_relu = { .layers = 1, .features = FEATURE_MAP_RELU };
    const TestConfig one_softmax = { .layers = 1, .attention = KIND_CAUSAL_SOFTMAX };
    check_heads(polynomial, 1, 64, 1);
    check_heads(polynomial, 1, 64, 9);
    check_heads(with_relu, 1, 256, 9);
    check_heads(with_relu, 1, 300, 9);
    check_heads(one_softmax, 1, 300, 9);
    check_heads(with_relu, 1, 1040, 1);
}

/* On CUDA, linear attention of more than 8 sequences has kernels for the head sizes 32 and 64. */
TEST(with_heads_of_32_and_64)
{
    for (int features = 0; features <= FEATURES_SQUARED_RELU; features++)
        for (int64_t size = 32; size <= 64; size += 32)
            check_heads((TestConfig){ .layers = 1, .features = features }, 3, size, 9);
}

/* On CUDA, each block processes several heads in turn. */
TEST(with_more_heads_than_blocks)
{
    check_heads((TestConfig){ .layers = 1 }, 1, 8, 4100);
    check_heads((TestConfig){ .layers = 1 }, 1, 32, 4100);
}

/* Only large batches use tf32 products; those of small batches stay in float32. */
TEST(with_products_in_tf32)
{
    if (!device_is_cuda(test_device()) || sizeof(Real) == sizeof(double))
        return;
    begin(linear);
    for (int64_t B = 2; B <= 20; B += 18) {
        Sequences s = sequences_new(B, LENGTH);
        TransformerState *state = nn_transformer_state(
            &transformer, (GenerationConfig){ .sequences = B, .precision = PRECISION_TF32 });
        const Real *out = test_values(nn_transformer_step(state, rows(cut(s, s.x, 0, 1), B)));
        const double error = relative_error(out, cut(s, s.out, 0, 1), B * width);
        ck_assert_msg(error <= (B == 2 ? TOLERANCE : 1e-2), "B = %d: %g", (int)B, error);
#ifdef TAPEGRAD_CUDA_ON_HOST /* cuBLAS may choose float32, as for unaligned rows */
        ck_assert(B == 2 || error > TOLERANCE);
#endif
        nn_transformer_state_free(state);
        tape_reset(tape);
    }
    end();
}

/* Rounds the weights of all products in place: to multiples of max / 127 per row or, times 0.75, to
 * bf16, which a bf16 state must follow. */
static void round_weights(bool int8)
{
    for (int w = 0; w < params_count(params); w++) {
        Tensor *weight = params_at(params, w);
        if (weight->shape.rank != 2)
            continue;
        const int64_t O = weight->shape.size[0], I = weight->shape.size[1];
        Real *values = test_values(weight);
        for (int64_t o = 0; o < O; o++) {
            Real *row = values + o * I, largest = 0;
            for (int64_t i = 0; i < I; i++)
                largest = (Real)fmax((double)largest, fabs((double)row[i]));
            const Real scale = largest / 127;
            for (int64_t i = 0; i < I; i++)
                row[i] = int8 ? scale * (Real)rint((double)row[i] / (double)scale)
                              : test_rounded_to_bf16(row[i] * (Real)0.75);
        }
        tensor_write(weight, values);
    }
}

/* Whether keys and values are rounded to bf16. */
static bool stored_in_bf16(TestConfig config, GenerationConfig generation)
{
    return config.attention == KIND_CAUSAL_SOFTMAX && generation.precision == PRECISION_BF16;
}

/* Against the parallel form with rounded weights. */
static void op_check_weights(TestConfig config, GenerationConfig generation)
{
    begin(config);
    generation.max_length = LENGTH;
    TransformerState *state = nn_transformer_state(&transformer, generation);
    round_weights(generation.int8_weights);
    const Sequences s = sequences_new(generation.sequences, LENGTH);
    for (int64_t n = 0; n < LENGTH; n++) {
        Tensor *out = nn_transformer_step(state, rows(cut(s, s.x, n, 1), s.B));
        assert_close(test_values(out), cut(s, s.out, n, 1), s.B * width,
                     stored_in_bf16(config, generation) ? BF16_TOLERANCE : TOLERANCE);
    }
    nn_transformer_state_free(state);
    tape_reset(tape);
    end();
}

TEST(with_weights_in_bf16_or_in_8_bits)
{
    static const int64_t batches[] = { 1, 3, 8, 40 };
    for (int i = 0; i < 24 && has_cpu_engine(test_device()); i++) {
        TestConfig config = kinds[i % 3];
        config.heads = 3;
        config.head_dim = i / 12 ? 44 : 5; /* rows of 132 elements, or less than a vector */
        config.feed_forward = 270;
        GenerationConfig generation = { .sequences = batches[i / 3 % 4] };
        generation.int8_weights = true;
        op_check_weights(config, generation);
        generation.int8_weights = false;
        generation.precision = PRECISION_BF16;
        if (sizeof(Real) == sizeof(float))
            op_check_weights(config, generation);
    }
}

TEST(a_weight_that_is_not_finite_shows_in_8_bits)
{
    for (int i = 0; i < 5 && has_cpu_engine(test_device()); i++) {
        static const Real bad[] = { NAN, INFINITY, 0, (Real)1e-44, (Real)2.7e-43 };
        begin(linear);
        Tensor *weight = params_find(params, "layers.1.ff2.weight");
        Real *values = test_values(weight);
        for (int64_t j = 0; j < weight->shape.size[1]; j++)
            values[j] = j == 3 ? bad[i] : 0; /* a row of zeros, or of denormals, has the scale 0 */
        tensor_write(weight, values);
        TransformerState *state =
            nn_transformer_state(&transformer, (GenerationConfig){ .int8_weights = true });
        const Real *out = test_values(nn_transformer_step(state, rows(test_normal(1, width), 1)));
        ck_assert(isnan(out[0]) == (i < 2));
        nn_transformer_state_free(state);
        end();
    }
}

/* The result of the first of B sequences after LENGTH steps. */
static const Real *first_alone(Sequences s, int64_t B)
{
    TransformerState *state = new_state(B, LENGTH);
    const Real *out = NULL;
    s.B = B;
    for (int64_t n = 0; n < LENGTH; n++)
        out = test_values(nn_transformer_step(state, rows(cut(s, s.x, n, 1), B)));
    nn_transformer_state_free(state);
    tape_reset(tape);
    return out;
}

TEST(threads_and_other_sequences_change_no_bit_on_the_cpu)
{
    for (int j = 0; j < 3 * stored_on(test_device()); j++) {
        TestConfig config = kinds[j % 3];
        stored = all_stored[j / 3];
        config.heads = 8;
        config.head_dim = 13;
        config.feed_forward = 550; /* large enough to split one sequence over threads */
        begin(config);
        Sequences s = sequences_new(MANY, LENGTH);
        static const int64_t batches[] = { 1, 2, 3, 7, 8, 33, MANY }; /* from 8 on in blocks */
        const Real *expected = NULL;
        for (int i = 0; i < 7 && has_cpu_engine(device); i++)
            for (int threads = 1; threads <= 3; threads++) {
                test_set_threads(threads);
                const Real *found = first_alone(s, batches[i]);
                expected = (batches[i] == 1 || batches[i] == 8) && threads == 1 ? found : expected;
                ck_assert_mem_eq(found, expected, (size_t)width * sizeof(Real));
            }
        end();
    }
}

/* Both continue a prompt, one from a copy of the state of the other. */
TEST(states_with_differently_stored_weights_are_copied)
{
    for (int j = 0; j < 3 * stored_on(test_device()); j++) {
        stored = (GenerationConfig){ 0 };
        const Setup u = begin_with(kinds[j % 3], 1, LENGTH);
        step_through(u.state, u.s, 0, 3);
        stored = all_stored[j / 3];
        TransformerState *copy = new_state(1, LENGTH);
        nn_transformer_state_copy(copy, 0, u.state, 0);
        Tensor *out = nn_transformer_step(copy, rows(cut(u.s, u.s.x, 3, 1), 1));
        assert_close(test_values(out), cut(u.s, u.s.out, 3, 1), width, j < 3 ? TOLERANCE : 0.05);
        nn_transformer_state_free(copy);
        end_with(u);
    }
}

TEST(a_result_may_be_the_next_x)
{
    const Setup u = begin_with(linear, 2, 4);
    TransformerState *other = new_state(2, 4);
    Tensor *out = nn_transformer_step(u.state, rows(u.s.x, 2));
    Tensor *expected = nn_transformer_step(other, rows(u.s.x, 2));
    const Real *copy = test_values(expected);
    out = nn_transformer_step(u.state, out);
    expected = nn_transformer_step(other, rows(copy, 2));
    ck_assert_mem_eq(test_values(out), test_values(expected), (size_t)(2 * width) * sizeof(Real));
    ck_assert_int_eq((int)tensor_count(op_relu(tape, out)), (int)(2 * width));
    nn_transformer_state_free(other);
    end_with(u);
}

/* -------------------------------------------------------------------------------------- prompts */
TEST(steps_continue_from_a_prompt_of_every_length)
{
    for (int j = 0; j < KINDS; j++) {
        begin(kinds[j]);
        Sequences s = sequences_new(3, LENGTH);
        for (int32_t n = 1; n <= LENGTH; n++) {
            TransformerState *state = new_state(3, LENGTH);
            prefill(state, s, 0, n);
            const int32_t p = n < LENGTH ? n : LENGTH - 1;
            assert_positions(state, (int32_t[]){ p, p, p });
            step_through(state, s, n, LENGTH);
            nn_transformer_state_free(state);
        }
        end();
    }
}

TEST(a_prompt_suits_every_feature_map)
{
    for (int features = 0; features <= FEATURES_RANDOM; features++) {
        const TestConfig config = { .features = features, .pre_norm = features & 1 };
        const Setup u = begin_with(config, 2, LENGTH);
        prefill(u.state, u.s, 0, 3);
        step_through(u.state, u.s, 3, LENGTH);
        end_with(u);
    }
}

TEST(linear_attention_takes_a_prompt_anywhere)
{
    const Setup u = begin_with(linear, 2, LENGTH);
    step_through(u.state, u.s, 0, 1);
    prefill(u.state, u.s, 1, 2);
    prefill(u.state, u.s, 3, 1);
    step_through(u.state, u.s, 4, LENGTH);
    end_with(u);
}

TEST(prompts_may_have_different_lengths)
{
    for (int j = 0; j < KINDS; j++) {
        const Setup u = begin_with(kinds[j], 3, LENGTH);
        const int32_t n[] = { 2, 1, 4 };
        const Real *out = test_values(nn_transformer_prefill(
            tape, u.state, prompt(cut(u.s, u.s.x, 0, 4), 3, 4), tape_input_i32(tape, n, shape(3))));
        for (int64_t b = 0; b < 3; b++)
            assert_close(out + b * 4 * width, u.s.out + b * LENGTH * width, n[b] * width,
                         TOLERANCE);
        assert_positions(u.state, n);
        ragged_step(u.state, u.s, n);
        ragged_step(u.state, u.s, (int32_t[]){ 3, 2, 5 });
        end_with(u);
    }
}

TEST(padding_of_short_prompts_may_exceed_max_length)
{
    for (int j = 0; j < KINDS; j++) {
        const Setup u = begin_with(kinds[j], 3, 4);
        const int32_t n[] = { 2, 1, 3 };
        nn_transformer_prefill(tape, u.state, prompt(u.s.x, 3, LENGTH),
                               tape_input_i32(tape, n, shape(3)));
        assert_positions(u.state, n);
        ragged_step(u.state, u.s, n);
        end_with(u);
    }
}

/* Recurrent state and KV cache are stored in Real, not in bf16. */
TEST(a_prompt_may_be_in_bf16)
{
    for (int j = 0; j < 2; j++) {
        const Setup u = begin_with(kinds[j], 2, LENGTH);
        if (test_has_bf16()) {
            tape_set_precision(tape, PRECISION_BF16);
            nn_transformer_prefill(tape, u.state, prompt(cut(u.s, u.s.x, 0, 4), 2, 4), NULL);
            Tensor *out = nn_transformer_step(u.state, rows(cut(u.s, u.s.x, 4, 1), 2));
            assert_close(test_values(out), cut(u.s, u.s.out, 4, 1), 2 * width, 0.02);
        }
        end_with(u);
    }
}

/* ---------------------------------------------------------------------------- resets and copies */
TEST(one_sequence_is_reset_or_all_are)
{
    for (int j = 0; j < KINDS; j++) {
        const Setup u = begin_with(kinds[j], 3, LENGTH);
        step_through(u.state, u.s, 0, 3);
        nn_transformer_state_reset(u.state, 1);
        assert_positions(u.state, (int32_t[]){ 3, 0, 3 });
        ragged_step(u.state, u.s, (int32_t[]){ 3, 0, 3 });
        ragged_step(u.state, u.s, (int32_t[]){ 4, 1, 4 });
        nn_transformer_state_reset(u.state, NN_ALL_SEQUENCES);
        assert_positions(u.state, (int32_t[]){ 0, 0, 0 });
        step_through(u.state, u.s, 0, LENGTH);
        end_with(u);
    }
}

/* Sequence `sequence` of s, repeated count times. */
static Sequences branches(Sequences s, int64_t sequence, int64_t count)
{
    Sequences result = { count, s.N, test_normal(0, count * s.N * width),
                         test_normal(0, count * s.N * width) };
    const int64_t each = s.N * width;
    for (int64_t b = 0; b < count; b++) {
        memcpy(result.x + b * each, s.x + sequence * each, (size_t)each * sizeof(Real));
        memcpy(result.out + b * each, s.out + sequence * each, (size_t)each * sizeof(Real));
    }
    return result;
}

TEST(a_copy_continues_as_the_original_would)
{
    for (int j = 0; j < KINDS; j++) {
        const Setup u = begin_with(kinds[j], 3, LENGTH);
        TransformerState *wide = new_state(2, LENGTH + 3);
        step_through(u.state, u.s, 0, 2);
        for (int64_t b = 0; b < 2; b++)
            nn_transformer_state_copy(wide, b, u.state, 2);
        assert_positions(wide, (int32_t[]){ 2, 2 });
        step_through(wide, branches(u.s, 2, 2), 2, LENGTH);
        for (int64_t b = 0; b < 3; b++)
            nn_transformer_state_copy(u.state, b, u.state, 1);
        step_through(u.state, branches(u.s, 1, 3), 2, LENGTH);
        nn_transformer_state_free(wide);
        end_with(u);
    }
}

/* ---------------------------------------------------------------------------------------- files */
static char path[64];

static const char *file_path(void)
{
    snprintf(path, sizeof path, "/tmp/tapegrad-generation-%ld", (long)getpid());
    return path;
}

TEST(a_loaded_state_continues_as_the_saved_one_would)
{
    for (int j = 0; j < KINDS; j++) {
        const Setup u = begin_with(kinds[j], 3, LENGTH);
        TransformerState *saved = new_state(3, LENGTH);
        step_through(saved, u.s, 0, 3);
        nn_transformer_state_reset(saved, 1);
        assert_ok(nn_transformer_state_save(saved, file_path()));
        nn_transformer_state_free(saved);
        step_through(u.state, u.s, 0, 1);
        assert_ok(nn_transformer_state_load(u.state, path));
        assert_positions(u.state, (int32_t[]){ 3, 0, 3 });
        ragged_step(u.state, u.s, (int32_t[]){ 3, 0, 3 });
        ragged_step(u.state, u.s, (int32_t[]){ 4, 1, 4 });
        end_with(u);
        unlink(path);
    }
}

/* Prefills a state in one precision, loads its file in the other, and continues. */
TEST(a_kv_cache_in_bf16_is_filled_by_a_prompt_and_saved_for_either_precision)
{
    for (int j = 0; j < 4 && stored_on(test_device()) == 3; j++) {
        stored = all_stored[j % 2 ? 2 : 0];
        const Setup u = begin_with(softmax, 2, LENGTH);
        nn_transformer_prefill(tape, u.state, prompt(cut(u.s, u.s.x, 0, 4), 2, 4), NULL);
        assert_ok(nn_transformer_state_save(u.state, file_path()));
        stored = all_stored[j / 2 ? 2 : 0];
        TransformerState *loaded = new_state(2, LENGTH);
        assert_ok(nn_transformer_state_load(loaded, path));
        const Real *out = test_values(nn_transformer_step(loaded, rows(cut(u.s, u.s.x, 4, 1), 2)));
        assert_close(out, cut(u.s, u.s.out, 4, 1), 2 * width, j ? BF16_TOLERANCE : TOLERANCE);
        nn_transformer_state_free(loaded);
        end_with(u);
        unlink(path);
    }
}

static void refuse(TransformerState *state, const char *sentence)
{
    ck_assert(!nn_transformer_state_load(state, path));
    ck_assert_msg(strstr(tapegrad_error(), sentence) != NULL, "\"%s\" lacks \"%s\"",
                  tapegrad_error(), sentence);
}

/* Saves the state of another transformer, number of sequences or max_length. */
static void save_other(int64_t sequences, int64_t max_length)
{
    TransformerState *state = new_state(sequences, max_length);
    ck_assert(nn_transformer_state_save(state, file_path()));
    nn_transformer_state_free(state);
}

/* Saves the state with other counts in the file. */
static void save_with_counts(const TransformerState *state, const int32_t *counts)
{
    ck_assert(nn_transformer_state_save(state, file_path()));
    TensorFile *file = tensor_file_open(path);
    FileEntry entries[16];
    static Real data[16][4096];
    const int count = tensor_file_count(file);
    for (int i = 0; i < count; i++) {
        entries[i] = *tensor_file_entry(file, i);
        ck_assert_int_le(shape_count(entries[i].shape), 4096);
        ck_assert(tensor_file_read_bytes(file, entries[i].name, data[i]));
        entries[i].data = strcmp(entries[i].name, "counts") == 0 ? (const void *)counts : data[i];
    }
    ck_assert(tensor_file_save(entries, count, NULL, 0, path));
    tensor_file_close(file);
}

TEST(a_file_that_does_not_fit_changes_nothing)
{
    for (int j = 0; j < 2; j++) {
        const Setup u = begin_with(kinds[j], 2, LENGTH);
        step_through(u.state, u.s, 0, 2);
        save_other(3, LENGTH);
        refuse(u.state, "shape");
        save_other(2, LENGTH + 1);
        refuse(u.state, j ? "shape" : "max_length is 7, expected 6");
        save_with_counts(u.state, (int32_t[]){ 1, -1 });
        refuse(u.state, "counts[1] is -1, expected 0 to 6");
        save_with_counts(u.state, (int32_t[]){ 7, 1 });
        refuse(u.state, "counts[0] is 7, expected 0 to 6");
        ck_assert(nn_transformer_state_save(u.state, path));
        for (long length = 200; length >= 3; length -= 197) {
            ck_assert_int_eq(truncate(path, length), 0);
            refuse(u.state, path);
        }
        unlink(path);
        refuse(u.state, strerror(ENOENT));
        step_through(u.state, u.s, 2, LENGTH);
        end_with(u);
    }
}

TEST(another_transformers_file_is_refused)
{
    const struct {
        TestConfig config;
        const char *sentence;
    } others[] = {
        { softmax, "layers.0.sums" },
        { { .layers = 3 }, "has 5 entries, expected 4: it belongs to another transformer" },
    };
    for (int i = 0; i < 2; i++) {
        begin(others[i].config);
        save_other(2, LENGTH);
        end();
        const Setup u = begin_with(linear, 2, LENGTH);
        refuse(u.state, others[i].sentence);
        end_with(u);
    }
    unlink(path);
}

/* --------------------------------------------------------------------------------------- memory */
static void check_memory(TestConfig config, int calls, int64_t B)
{
    begin(config);
    if (B == MANY)
        test_set_threads(2);
    const int max_length = device_is_cuda(device) ? 6 : 40; /* the emulated device is slow */
    TransformerState *state = new_state(B, max_length);
    Tensor *x = tape_persistent(tape, shape(B, width));
    tensor_write(x, test_normal(2, B * width));
    device_reset_peak(device);
    for (int n = 0; n < calls; n++)
        nn_transformer_step(state, x);
    const DeviceMemory first = device_memory(device);
    const int64_t mallocs_first = mallocs;
    device_reset_peak(device);
    for (int n = calls; n < max_length; n++)
        nn_transformer_step(state, x);
    const int64_t mallocs_last = mallocs;
    const DeviceMemory last = device_memory(device);
    ck_assert_uint_eq(last.current, first.current);
    ck_assert_uint_eq(last.peak, first.peak);
    ck_assert_uint_eq(last.reserved, first.reserved);
    if (!device_is_cuda(device))
        ck_assert_int_eq(mallocs_last, mallocs_first);
    nn_transformer_state_free(state);
    end();
}

/* A step by operations allocates in the second call, too. */
TEST(memory_stays_what_it_is_after_the_first_steps)
{
    const bool cuda = device_is_cuda(test_device()), engine = cuda || has_cpu_engine(test_device());
    for (int j = 0; j < (cuda ? 2 : KINDS); j++) {
        check_memory(kinds[j], engine && j < 2 ? 1 : 2, 1);
        check_memory(kinds[j], engine && j < 2 ? 1 : 2, MANY);
    }
}

TEST(the_state_of_linear_attention_does_not_grow_with_max_length)
{
    begin(linear);
    TransformerState *state = new_state(2, 4);
    const size_t before = device_memory(device).current;
    nn_transformer_state_free(state);
    state = new_state(2, 100000);
    ck_assert_uint_eq(device_memory(device).current, before);
    nn_transformer_state_free(state);
    end();
}

/* Bytes that a state of one sequence adds. */
static size_t state_memory(GenerationConfig config)
{
    const size_t before = device_memory(device).current;
    TransformerState *state = nn_transformer_state(&transformer, config);
    const size_t added = device_memory(device).current - before;
    nn_transformer_state_free(state);
    return added;
}

TEST(in_bf16_the_kv_cache_takes_half_the_memory)
{
    for (int j = 0; j < 2 && stored_on(test_device()) == 3; j++) {
        begin(kinds[j]);
        const GenerationConfig in_bf16 = { .max_length = 100000, .precision = PRECISION_BF16 };
        nn_transformer_state_free(nn_transformer_state(&transformer, in_bf16)); /* bf16 weights */
        const size_t real = state_memory((GenerationConfig){ .max_length = 100000 });
        const double share = (double)state_memory(in_bf16) / (double)real;
        ck_assert_msg(j == 0 ? share == 1 : share > 0.49 && share < 0.52, "%g", share);
        end();
    }
}

TEST(more_threads_may_come_later)
{
    test_set_threads(1);
    const Setup u = begin_with(linear, MANY, LENGTH);
    step_through(u.state, u.s, 0, 2);
    test_set_threads(4);
    step_through(u.state, u.s, 2, LENGTH);
    end_with(u);
}

/* From the current position of the sequences: prefill of 3 positions at position 0, then decode
 * steps up to position 5. Returns the last result. */
static const Real *prompt_and_steps(TransformerState *state, Sequences s)
{
    int32_t n[2];
    tensor_read_i32(nn_transformer_state_positions(state), n);
    ck_assert_int_eq(n[0], n[1]);
    if (n[0] == 0) {
        nn_transformer_prefill(tape, state, prompt(cut(s, s.x, 0, 3), s.B, 3), NULL);
        n[0] = 3;
    }
    ck_assert_int_ge(n[0], 3);
    Tensor *out = NULL;
    for (; n[0] < 5; n[0]++)
        out = nn_transformer_step(state, rows(cut(s, s.x, n[0], 1), s.B));
    const Real *result = test_values(out);
    tape_reset(tape);
    return result;
}

/* Makes the n-th allocation fail; the failure changes nothing, and generation
 * continues from there. */
static bool fails_and_recovers(Sequences s, int n, const Real *expected)
{
    static TransformerState *state;
    state = NULL;
    volatile bool raised = false;
    test_expect_error();
    if (!setjmp(test_error_jump)) {
        device_fail_allocation(n);
        state = new_state(s.B, LENGTH);
        prompt_and_steps(state, s);
    } else {
        raised = true;
    }
    tapegrad_on_error(NULL, NULL);
    const bool happened = device_fail_allocation(0);
    ck_assert_int_eq(raised, happened);
    if (raised) {
        assert_exhausted();
        tape_reset(tape);
        state = state ? state : new_state(s.B, LENGTH);
        ck_assert_mem_eq(prompt_and_steps(state, s), expected,
                         (size_t)(s.B * width) * sizeof(Real));
    }
    nn_transformer_state_free(state);
    return happened;
}

TEST(exhausted_memory_changes_nothing)
{
    for (int j = 0; j < 2 * stored_on(test_device()); j++) {
        begin(kinds[j % 2]);
        stored = all_stored[j / 2];
        Sequences s = sequences_new(2, LENGTH);
        TransformerState *state = new_state(2, LENGTH);
        const Real *expected = prompt_and_steps(state, s);
        nn_transformer_state_free(state);
        int n = 1;
        while (fails_and_recovers(s, n, expected))
            n++;
        ck_assert_int_gt(n, 8);
        end();
    }
}

TEST(exhausted_memory_spoils_no_file)
{
    begin(linear);
    TransformerState *state = new_state(2, LENGTH);
    ck_assert(nn_transformer_state_save(state, file_path()));
    for (int loading = 0; loading < 2; loading++)
        for (int n = 1;; n++) {
            device_fail_allocation(n);
            const bool good = loading ? nn_transformer_state_load(state, path)
                                      : nn_transformer_state_save(state, path);
            const bool happened = device_fail_allocation(0);
            ck_assert_int_eq(good, !happened);
            if (!happened)
                break;
            assert_exhausted();
        }
    unlink(path);
    nn_transformer_state_free(state);
    end();
}

/* -------------------------------------------------------------------------------------- replays */
typedef struct Replayed {
    TransformerState *state;
    Tensor *x, *out;
} Replayed;

static void replayed_step(void *context)
{
    Replayed *replayed = context;
    replayed->out = nn_transformer_step(replayed->state, replayed->x);
}

/* Sequence 0 is always at its first position. */
static void reset_and_step(void *context)
{
    nn_transformer_state_reset(((Replayed *)context)->state, 0);
    replayed_step(context);
}

/* Sequence 0 becomes a copy of sequence 1. */
static void copy_and_step(void *context)
{
    TransformerState *state = ((Replayed *)context)->state;
    nn_transformer_state_copy(state, 0, state, 1);
    replayed_step(context);
}

/* Replays one step at position n[b] of each sequence b. */
static void replay(Replayed *replayed, void (*step)(void *), Sequences s, const int32_t *n)
{
    tensor_write(replayed->x, ragged(s, s.x, n));
    tape_replay(tape, step, replayed);
    assert_close(test_values(replayed->out), ragged(s, s.out, n), s.B * width, TOLERANCE);
}

/* One replay more than max_length. */
static void replay_too_often(Replayed *replayed, int64_t B)
{
    if (!device_is_cuda(device)) {
        assert_raises(FULL, tape_replay(tape, replayed_step, replayed));
        return;
    }
    tape_replay(tape, replayed_step, replayed);
    const Real *out = test_values(replayed->out);
    for (int64_t i = 0; i < B * width; i++)
        ck_assert(isnan(out[i]));
}

static void check_replays(TestConfig config, int64_t B)
{
    const Setup u = begin_with(config, B, LENGTH);
    Replayed replayed = { .state = u.state, .x = tape_persistent(tape, shape(B, width)) };
    int32_t n[MANY];
    for (int pass = 0; pass < 2; pass++) {
        nn_transformer_state_reset(u.state, NN_ALL_SEQUENCES);
        for (int32_t position = 0; position < LENGTH; position++) {
            for (int64_t b = 0; b < B; b++)
                n[b] = position;
            replay(&replayed, replayed_step, u.s, n);
        }
    }
    replay_too_often(&replayed, B);
    assert_positions(u.state, n);
    assert_raises(FULL, nn_transformer_step(u.state, replayed.x));
    nn_transformer_state_reset(u.state, NN_ALL_SEQUENCES);
    prefill(u.state, u.s, 0, 2);
    step_through(u.state, u.s, 2, LENGTH);
    end_with(u);
}

TEST(a_step_may_be_replayed)
{
    check_replays(linear, 2);
    check_replays(softmax, 2);
    check_replays(softmax, 9);
    check_replays((TestConfig){ .heads = 2, .head_dim = 32 }, 9);
}

TEST(resets_and_copies_may_be_replayed)
{
    for (int j = 0; j < 2; j++) {
        const Setup u = begin_with(kinds[j], 2, LENGTH);
        Replayed replayed = { .state = u.state, .x = tape_persistent(tape, shape(2, width)) };
        for (int32_t n = 0; n < 3; n++)
            replay(&replayed, reset_and_step, u.s, (int32_t[]){ 0, n });
        assert_positions(u.state, (int32_t[]){ 1, 3 });
        for (int32_t n = 3; n < LENGTH; n++)
            replay(&replayed, copy_and_step, branches(u.s, 1, 2), (int32_t[]){ n, n });
        end_with(u);
    }
}

/* x is the row of the table out at the current position. */
static void step_at_position(void *context)
{
    Replayed *p = context;
    p->x = op_embedding(tape, p->out, nn_transformer_state_positions(p->state));
    nn_transformer_step(p->state, p->x);
}

TEST(positions_are_indices_in_a_replayed_step)
{
    const Setup u = begin_with(linear, 2, LENGTH);
    Replayed p = { .state = u.state, .out = tape_persistent(tape, shape(LENGTH, width)) };
    const Real *table = test_normal(3, LENGTH * width);
    tensor_write(p.out, table);
    for (int64_t n = 0; n < LENGTH; n++) {
        tape_replay(tape, step_at_position, &p);
        for (int64_t b = 0; b < 2; b++)
            ck_assert_mem_eq(test_values(p.x) + b * width, table + n * width,
                             (size_t)width * sizeof(Real));
    }
    end_with(u);
}

/* --------------------------------------------------------------------------------------- misuse */
TEST(states_are_of_causal_linear_or_softmax_attention)
{
    static const struct {
        TestKind kind;
        const char *sentence;
    } cases[] = {
#define REFUSED(kind, name)                                                                        \
    { kind, "nn_transformer_state: the transformer's attention is " name                           \
            ", expected causal linear, causal softmax or the delta rule" }
        REFUSED(KIND_LINEAR, "linear"),
        REFUSED(KIND_SOFTMAX, "softmax"),
        REFUSED(KIND_CAUSAL_LSH, "causal LSH"),
        REFUSED(KIND_LSH, "LSH"),
    };
    for (int i = 0; i < 4; i++) {
        begin((TestConfig){ .attention = cases[i].kind });
        assert_raises(cases[i].sentence, new_state(1, LENGTH));
        end();
    }
    begin((TestConfig){ .attention = KIND_CAUSAL_SOFTMAX, .decay = DECAY_CONSTANT });
    assert_raises(STATE "layer 0 is softmax attention with a decay, which has no KV cache",
                  new_state(1, LENGTH));
    transformer.layers = 0;
    assert_raises(STATE "the transformer has no layers; see nn_transformer", new_state(1, LENGTH));
    end();
}

TEST(the_debug_mode_reports_freed_weights)
{
    setenv("TAPEGRAD_DEBUG", "1", 1);
    begin(softmax);
    TransformerState *state = new_state(1, LENGTH);
    Tensor *x = tape_input(tape, test_normal(1, width), shape(1, width));
    params_free(params);
    assert_raises(STEP "the weights cannot be used after params_free",
                  nn_transformer_step(state, x));
    nn_transformer_state_free(state);
    tape_free(tape);
}

TEST(gates_decode_in_float32)
{
    if (!has_cpu_engine(test_device()))
        return;
    begin((TestConfig){ .attention = KIND_DELTA_RULE });
    for (int i = 1; i < STORED; i++) {
        stored = all_stored[i];
        assert_raises(i == 1 ? STATE "int8_weights are not available for layers that differ, have "
                                     "gates other than a decay, or rotary positions"
                             : STATE "bf16 is not available for layers that differ, have gates "
                                     "other than a decay, or rotary positions",
                      new_state(1, LENGTH));
    }
    end();
}

TEST(a_config_must_make_sense)
{
    const GenerationConfig in_bf16 = { .precision = PRECISION_BF16 };
    const GenerationConfig in_tf32 = { .precision = PRECISION_TF32 };
    begin(linear);
    assert_raises(STATE "sequences is -1, expected 1 to 2147483646, or 0 for the default",
                  new_state(-1, LENGTH));
    assert_raises(STATE "max_length is 2147483647, expected 1 to 2147483646, or 0 for the default",
                  new_state(1, INT32_MAX));
    const GenerationConfig in_nothing = { .precision = (Precision)3 };
    const GenerationConfig in_int8 = { .int8_weights = true };
    assert_raises(STATE "there is no precision 3", nn_transformer_state(&transformer, in_nothing));
#ifdef TAPEGRAD_DOUBLE
    assert_raises(STATE "tf32 is not available in a double-precision build",
                  nn_transformer_state(&transformer, in_tf32));
    assert_raises(STATE "bf16 is not available in a double-precision build",
                  nn_transformer_state(&transformer, in_bf16));
#else
    char sentence[100];
    snprintf(sentence, sizeof sentence, STATE "bf16 is on the CPU only, the transformer is on %s",
             device_name(device));
    if (!has_cpu_engine(device))
        assert_raises(sentence, nn_transformer_state(&transformer, in_bf16));
    Transformer foreign = transformer;
    foreign.layer[1].ff2.weight = tape_persistent(tape, foreign.layer[1].ff2.weight->shape);
    if (has_cpu_engine(device))
        assert_raises(STATE
                      "bf16 needs weights of a Params, this one is [15,37] and belongs to none",
                      nn_transformer_state(&foreign, in_bf16));
    if (has_cpu_engine(device))
        assert_raises(STATE "tf32 needs a CUDA device, the transformer is on cpu",
                      nn_transformer_state(&transformer, in_tf32));
#endif
    char int8_sentence[100];
    snprintf(int8_sentence, sizeof int8_sentence,
             STATE "int8_weights are on the CPU only, the transformer is on %s",
             device_name(device));
    if (!has_cpu_engine(device))
        assert_raises(int8_sentence, nn_transformer_state(&transformer, in_int8));
    assert_raises("nn_transformer_step: the state is NULL", nn_transformer_step(NULL, NULL));
    assert_raises("nn_transformer_prefill: the state is NULL",
                  nn_transformer_prefill(tape, NULL, NULL, NULL));
    assert_raises("nn_transformer_state_reset: the state is NULL",
                  nn_transformer_state_reset(NULL, 0));
    assert_raises(STATE "the transformer is NULL",
                  nn_transformer_state(NULL, (GenerationConfig){ 0 }));
    TransformerState *state = nn_transformer_state(&transformer, (GenerationConfig){ 0 });
    ck_assert_int_eq((int)tensor_count(nn_transformer_state_positions(state)), 1);
    nn_transformer_state_free(state);
    nn_transformer_state_free(NULL);
    end();
}

TEST(a_steps_x_must_fit)
{
    const Setup u = begin_with(linear, 2, 1);
    assert_raises(STEP "x is NULL", nn_transformer_step(u.state, NULL));
    assert_raises(STEP "x is [3,15], expected [2,15]: [sequences, width]",
                  nn_transformer_step(u.state, rows(u.s.x, 3)));
    assert_raises(STEP "x requires a gradient, and none passes through a step; call "
                       "tape_set_recording(tape, false) before x is made",
                  nn_transformer_step(u.state, tape_variable(tape, u.s.x, shape(2, width))));
    assert_raises(STEP "x has dtype int32, expected Real",
                  nn_transformer_step(u.state, nn_transformer_state_positions(u.state)));
    Tensor *x = rows(u.s.x, 2);
    nn_transformer_step(u.state, x);
    assert_raises(STEP "sequence 0 already has max_length (1) positions",
                  nn_transformer_step(u.state, x));
    nn_transformer_state_reset(u.state, 0);
    assert_raises(STEP "sequence 1 already has max_length (1) positions",
                  nn_transformer_step(u.state, x));
    assert_positions(u.state, (int32_t[]){ 0, 0 });
    end_with(u);
}

static Tensor *lengths(int64_t B, int32_t b0, int32_t b1)
{
    return tape_input_i32(tape, (int32_t[]){ b0, b1, 1 }, shape(B));
}

TEST(a_prompt_must_fit)
{
    const Setup u = begin_with(softmax, 2, 3);
    TransformerState *state = u.state;
    Tensor *x = prompt(u.s.x, 2, 3);
    tape_set_recording(tape, true);
    assert_raises(PREFILL "the tape is recording, and no gradient passes into a state; call "
                          "tape_set_recording(tape, false) first",
                  nn_transformer_prefill(tape, state, x, NULL));
    tape_set_recording(tape, false);
    tape_set_training(tape, true);
    nn_transformer_prefill(tape, state, x, NULL); /* no dropout: training changes nothing */
    nn_transformer_state_reset(state, NN_ALL_SEQUENCES);
    transformer.layer[1].dropout = nn_dropout((Real)0.5);
    TransformerState *with_dropout = new_state(2, 3);
    assert_raises(PREFILL "the tape is training, and decode steps have no dropout; call "
                          "tape_set_training(tape, false) first",
                  nn_transformer_prefill(tape, with_dropout, x, NULL));
    tape_set_training(tape, false);
    nn_transformer_prefill(tape, with_dropout, x, NULL);
    nn_transformer_state_free(with_dropout);
    assert_raises(PREFILL "x is [2,15], expected [2, N, 15]: [sequences, N, width]",
                  nn_transformer_prefill(tape, state, rows(u.s.x, 2), NULL));
    assert_raises(PREFILL "sequence 0 would have 4 positions, max_length is 3",
                  nn_transformer_prefill(tape, state, prompt(u.s.x, 2, 4), NULL));
    assert_raises(PREFILL "lengths is [3], expected [2]: one per sequence",
                  nn_transformer_prefill(tape, state, x, lengths(3, 1, 1)));
    assert_raises(PREFILL "lengths[1] is 4, expected 1 to 3, the number of positions",
                  nn_transformer_prefill(tape, state, x, lengths(2, 1, 4)));
    nn_transformer_prefill(tape, state, x, lengths(2, 1, 2));
    nn_transformer_state_reset(state, 0);
    assert_raises(PREFILL "sequence 1 already has 2 positions; softmax attention prefills empty "
                          "sequences only",
                  nn_transformer_prefill(tape, state, x, NULL));
    end_with(u);
}

TEST(copies_and_resets_must_fit)
{
    const Setup u = begin_with(linear, 2, 3);
    TransformerState *state = u.state, *shorter = new_state(1, 1);
    assert_raises("nn_transformer_state_reset: there is no sequence 2, the state has 2",
                  nn_transformer_state_reset(state, 2));
    assert_raises(COPY "there is no sequence -1, the state has 2",
                  nn_transformer_state_copy(state, -1, state, 0));
    assert_raises(COPY "there is no sequence 1, the state has 1",
                  nn_transformer_state_copy(state, 0, shorter, 1));
    Tensor *x = rows(u.s.x, 2);
    nn_transformer_step(state, x);
    nn_transformer_state_copy(shorter, 0, state, 0);
    nn_transformer_step(state, x);
    assert_raises(COPY "sequence 0 has 2 positions, max_length of the destination is 1",
                  nn_transformer_state_copy(shorter, 0, state, 0));
    Params *others = params_new(device, 1);
    transformer = nn_transformer(others, "", test_config(others, linear));
    TransformerState *other = new_state(1, 3);
    assert_raises(COPY "the states belong to different transformers",
                  nn_transformer_state_copy(state, 0, other, 0));
    nn_transformer_state_free(other);
    nn_transformer_state_free(shorter);
    params_free(others);
    end_with(u);
}

int main(void)
{
    setenv("TAPEGRAD_CUDA_EARLY", "1", 0); /* the emulation checks dependent launches */
    return test_main("generation", NULL, NULL);
}
