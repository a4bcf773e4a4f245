/* Generation: every decode step gives the result of the parallel form at its position. */
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

static void shift_bias(const char *name)
{
    Tensor *bias = params_find(params, name);
    if (!bias) /* LSH attention has no bias of keys */
        return;
    Real *values = test_values(bias);
    for (int64_t i = 0; i < tensor_count(bias); i++)
        values[i] += 1;
    tensor_write(bias, values);
}

/* Queries and keys near 1 keep every normalizer away from 0, with any feature map. */
static void begin(TransformerConfig config)
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
    transformer = nn_transformer(params, "", config);
    for (int i = 0; i < config.layers; i++) {
        char name[64];
        snprintf(name, sizeof name, "layers.%d.attention.query.bias", i);
        shift_bias(name);
        snprintf(name, sizeof name, "layers.%d.attention.key.bias", i);
        shift_bias(name);
    }
}

static void end(void)
{
    tape_free(tape);
    params_free(params);
    ck_assert_uint_eq(device_memory(device).current, 0);
}

static TransformerState *new_state(int64_t sequences, int64_t max_length)
{
    return nn_transformer_state(
        &transformer, (GenerationConfig){ .sequences = sequences, .max_length = max_length });
}

static const TransformerConfig linear = { 0 }, softmax = { .attention = ATTENTION_CAUSAL_SOFTMAX };

/* ------------------------------------------------------------------------------------ sequences */
typedef struct Sequences {
    int64_t B, N;
    Real *x, *out; /* [B, N, width]: random values, and the results of the parallel form */
} Sequences;

static Sequences sequences_new(int64_t B, int64_t N)
{
    Sequences s = { B, N, test_normal(31, B * N * width), NULL };
    Tensor *x = tape_input(tape, s.x, shape(B, N, width));
    s.out = test_values(nn_transformer_forward(tape, &transformer, x, NULL));
    tape_reset(tape);
    return s;
}

/* Positions n to n + count - 1 of `all`, which is x or out: [B, count, width]. */
static Real *cut(Sequences s, const Real *all, int64_t n, int64_t count)
{
    Real *piece = test_normal(0, s.B * count * width);
    for (int64_t b = 0; b < s.B; b++)
        memcpy(piece + b * count * width, all + (b * s.N + n) * width,
               (size_t)(count * width) * sizeof *piece);
    return piece;
}

/* Decode steps for positions n to end - 1; each must match the parallel form. */
static void step_through(TransformerState *state, Sequences s, int64_t n, int64_t end)
{
    for (; n < end; n++) {
        Tensor *x = tape_input(tape, cut(s, s.x, n, 1), shape(s.B, width));
        const Real *out = test_values(nn_transformer_step(state, x));
        assert_close(out, cut(s, s.out, n, 1), s.B * width, TOLERANCE);
        tape_reset(tape);
    }
}

static void prefill(TransformerState *state, Sequences s, int64_t n, int64_t count)
{
    Tensor *x = tape_input(tape, cut(s, s.x, n, count), shape(s.B, count, width));
    const Real *out = test_values(nn_transformer_prefill(tape, state, x, NULL));
    assert_close(out, cut(s, s.out, n, count), s.B * count * width, TOLERANCE);
    tape_reset(tape);
}

static void assert_positions(const TransformerState *state, const int32_t *expected)
{
    Tensor *positions = nn_transformer_state_positions(state);
    const int64_t B = tensor_count(positions);
    int32_t found[MANY];
    tensor_read_i32(positions, found);
    for (int64_t b = 0; b < B; b++)
        ck_assert_int_eq(found[b], expected[b]);
}

/* ------------------------------------------------------------------------------- every position */
static void check_positions(TransformerConfig config, int64_t B)
{
    begin(config);
    if (B == MANY)
        device_set_threads(2);
    Sequences s = sequences_new(B, LENGTH);
    TransformerState *state = new_state(B, LENGTH);
    step_through(state, s, 0, LENGTH);
    nn_transformer_state_free(state);
    end();
}

START_TEST(a_step_is_the_parallel_form_at_its_position)
{
    check_positions(linear, 1);
    check_positions(linear, 3);
    check_positions(linear, 17);
    check_positions(linear, MANY);
    check_positions(softmax, 1);
    check_positions(softmax, 3);
    check_positions(softmax, MANY);
}
END_TEST

START_TEST(with_every_feature_map)
{
    for (Features features = 0; features <= FEATURES_RANDOM; features++) {
        check_positions((TransformerConfig){ .features = features }, 2);
        check_positions((TransformerConfig){ .features = features, .head_dim = 17, .heads = 2 }, 3);
    }
    check_positions((TransformerConfig){ .features = FEATURES_RANDOM, .projections = 7 }, 2);
}
END_TEST

START_TEST(with_every_arrangement_of_a_layer)
{
    for (int bits = 0; bits < 24; bits++)
        check_positions((TransformerConfig){ .attention = bits & 1 ? ATTENTION_CAUSAL_SOFTMAX
                                                                   : ATTENTION_CAUSAL_LINEAR,
                                             .pre_norm = bits & 2,
                                             .activation = (Activation)(bits / 8),
                                             .no_final_norm = bits & 4 },
                        3);
}
END_TEST

START_TEST(with_ragged_and_with_whole_sizes)
{
    static const int64_t sizes[][2] = { { 1, 1 }, { 1, 7 }, { 2, 16 }, { 2, 33 }, { 5, 12 } };
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 2; j++) {
            TransformerConfig config = j ? softmax : linear;
            config.heads = sizes[i][0];
            config.head_dim = sizes[i][1];
            config.no_final_norm = config.pre_norm = sizes[i][1] == 1; /* norms of 1 are 0 */
            check_positions(config, 5);
        }
}
END_TEST

/* On CUDA: heads whose state exceeds shared memory, heads with more columns than a block has
 * threads, and heads with about the same number. */
START_TEST(with_great_heads)
{
    static const struct {
        int64_t sequences, head_dim;
        Features features;
        bool softmax;
    } cases[] = { { 1, 64, FEATURES_POLYNOMIAL, false }, { 9, 64, FEATURES_POLYNOMIAL, false },
                  { 9, 256, FEATURES_RELU, false },      { 9, 300, FEATURES_RELU, false },
                  { 9, 300, FEATURES_RELU, true },       { 1, 1040, FEATURES_RELU, false } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        TransformerConfig config = cases[i].softmax ? softmax : linear;
        config.layers = config.heads = 1;
        config.head_dim = cases[i].head_dim;
        config.features = cases[i].features;
        check_positions(config, cases[i].sequences);
    }
}
END_TEST

/* On CUDA, linear attention of more than 8 sequences has kernels for the head sizes 32 and 64. */
START_TEST(with_heads_of_32_and_64)
{
    for (Features features = 0; features <= FEATURES_SQUARED_RELU; features++)
        for (int64_t size = 32; size <= 64; size += 32)
            check_positions(
                (TransformerConfig){
                    .layers = 1, .heads = 3, .head_dim = size, .features = features },
                9);
}
END_TEST

/* On CUDA, each block processes several heads in turn. */
START_TEST(with_more_heads_than_blocks)
{
    check_positions((TransformerConfig){ .layers = 1, .heads = 1, .head_dim = 8 }, 4100);
    check_positions((TransformerConfig){ .layers = 1, .heads = 1, .head_dim = 32 }, 4100);
}
END_TEST

#ifndef TAPEGRAD_DOUBLE
/* Only large batches use tf32 products; those of small batches stay in float32. */
START_TEST(with_products_in_tf32)
{
    if (!device_is_cuda(test_device()))
        return;
    begin(linear);
    for (int64_t B = 2; B <= 20; B += 18) {
        Sequences s = sequences_new(B, LENGTH);
        TransformerState *state = nn_transformer_state(
            &transformer, (GenerationConfig){ .sequences = B, .precision = PRECISION_TF32 });
        Tensor *x = tape_input(tape, cut(s, s.x, 0, 1), shape(B, width));
        const Real *out = test_values(nn_transformer_step(state, x));
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
END_TEST
#endif

/* The result of the first of B sequences after LENGTH steps. */
static const Real *first_alone(Sequences s, int64_t B)
{
    TransformerState *state = new_state(B, LENGTH);
    const Real *out = NULL;
    s.B = B;
    for (int64_t n = 0; n < LENGTH; n++)
        out = test_values(
            nn_transformer_step(state, tape_input(tape, cut(s, s.x, n, 1), shape(B, width))));
    nn_transformer_state_free(state);
    tape_reset(tape);
    return out;
}

START_TEST(threads_and_other_sequences_change_no_bit_on_the_cpu)
{
    for (int j = 0; j < 2; j++) {
        TransformerConfig config = j ? softmax : linear;
        config.heads = 8;
        config.head_dim = 13;
        config.feed_forward = 550; /* large enough to split one sequence over threads */
        begin(config);
        Sequences s = sequences_new(MANY, LENGTH);
        static const int64_t batches[] = { 1, 2, 3, 7, 8, 33, MANY }; /* from 8 on in blocks */
        const Real *expected = NULL;
        for (int i = 0; i < 7 && !device_is_cuda(device); i++)
            for (int threads = 1; threads <= 3; threads++) {
                device_set_threads(threads);
                const Real *found = first_alone(s, batches[i]);
                expected = (batches[i] == 1 || batches[i] == 8) && threads == 1 ? found : expected;
                ck_assert_mem_eq(found, expected, (size_t)width * sizeof(Real));
            }
        end();
    }
}
END_TEST

START_TEST(a_result_may_be_the_next_x)
{
    begin(linear);
    TransformerState *state = new_state(2, 4), *other = new_state(2, 4);
    Real *x = test_normal(1, 2 * width);
    Tensor *out = nn_transformer_step(state, tape_input(tape, x, shape(2, width)));
    Tensor *expected = nn_transformer_step(other, tape_input(tape, x, shape(2, width)));
    const Real *copy = test_values(expected);
    out = nn_transformer_step(state, out);
    expected = nn_transformer_step(other, tape_input(tape, copy, shape(2, width)));
    ck_assert_mem_eq(test_values(out), test_values(expected), (size_t)(2 * width) * sizeof(Real));
    ck_assert_int_eq((int)tensor_count(op_relu(tape, out)), (int)(2 * width));
    nn_transformer_state_free(state);
    nn_transformer_state_free(other);
    end();
}
END_TEST

/* -------------------------------------------------------------------------------------- prompts */
START_TEST(steps_go_on_from_a_prompt_of_every_length)
{
    for (int j = 0; j < 2; j++) {
        begin(j ? softmax : linear);
        Sequences s = sequences_new(3, LENGTH);
        for (int64_t n = 1; n <= LENGTH; n++) {
            TransformerState *state = new_state(3, LENGTH);
            prefill(state, s, 0, n);
            const int32_t p = (int32_t)(n < LENGTH ? n : LENGTH - 1);
            assert_positions(state, (int32_t[]){ p, p, p });
            step_through(state, s, n, LENGTH);
            nn_transformer_state_free(state);
        }
        end();
    }
}
END_TEST

START_TEST(a_prompt_suits_every_feature_map)
{
    for (Features features = 0; features <= FEATURES_RANDOM; features++) {
        begin((TransformerConfig){ .features = features, .pre_norm = features & 1 });
        Sequences s = sequences_new(2, LENGTH);
        TransformerState *state = new_state(2, LENGTH);
        prefill(state, s, 0, 3);
        step_through(state, s, 3, LENGTH);
        nn_transformer_state_free(state);
        end();
    }
}
END_TEST

START_TEST(linear_attention_takes_a_prompt_anywhere)
{
    begin(linear);
    Sequences s = sequences_new(2, LENGTH);
    TransformerState *state = new_state(2, LENGTH);
    step_through(state, s, 0, 1);
    prefill(state, s, 1, 2);
    prefill(state, s, 3, 1);
    step_through(state, s, 4, LENGTH);
    nn_transformer_state_free(state);
    end();
}
END_TEST

/* Row n[b] of each sequence b: every sequence continues from its own length. */
static Real *ragged(Sequences s, const Real *all, const int32_t *n)
{
    Real *rows = test_normal(0, s.B * width);
    for (int64_t b = 0; b < s.B; b++)
        memcpy(rows + b * width, all + (b * s.N + n[b]) * width, (size_t)width * sizeof *rows);
    return rows;
}

START_TEST(prompts_may_have_different_lengths)
{
    for (int j = 0; j < 2; j++) {
        begin(j ? softmax : linear);
        Sequences s = sequences_new(3, LENGTH);
        TransformerState *state = new_state(3, LENGTH);
        int32_t n[] = { 2, 1, 4 };
        Tensor *x = tape_input(tape, cut(s, s.x, 0, 4), shape(3, 4, width));
        Tensor *lengths = tape_input_i32(tape, n, shape(3));
        const Real *out = test_values(nn_transformer_prefill(tape, state, x, lengths));
        for (int64_t b = 0; b < 3; b++)
            assert_close(out + b * 4 * width, s.out + b * LENGTH * width, n[b] * width, TOLERANCE);
        assert_positions(state, n);
        for (int i = 0; i < 2; i++) {
            x = tape_input(tape, ragged(s, s.x, n), shape(3, width));
            assert_close(test_values(nn_transformer_step(state, x)), ragged(s, s.out, n), 3 * width,
                         TOLERANCE);
            for (int b = 0; b < 3; b++)
                n[b]++;
        }
        nn_transformer_state_free(state);
        end();
    }
}
END_TEST

/* The padding of shorter prompts may reach past max_length. */
START_TEST(padding_of_short_prompts_may_exceed_max_length)
{
    for (int j = 0; j < 2; j++) {
        begin(j ? softmax : linear);
        Sequences s = sequences_new(3, LENGTH);
        TransformerState *state = new_state(3, 4);
        int32_t n[] = { 2, 1, 3 };
        Tensor *x = tape_input(tape, s.x, shape(3, LENGTH, width));
        nn_transformer_prefill(tape, state, x, tape_input_i32(tape, n, shape(3)));
        assert_positions(state, n);
        x = tape_input(tape, ragged(s, s.x, n), shape(3, width));
        assert_close(test_values(nn_transformer_step(state, x)), ragged(s, s.out, n), 3 * width,
                     TOLERANCE);
        nn_transformer_state_free(state);
        end();
    }
}
END_TEST

/* Recurrent state and KV cache are stored in Real, not in bf16. */
START_TEST(a_prompt_may_be_in_bf16)
{
    for (int j = 0; j < 2; j++) {
        begin(j ? softmax : linear);
        if (device_is_cuda(device) && sizeof(Real) == sizeof(float)) {
            Sequences s = sequences_new(2, LENGTH);
            tape_set_precision(tape, PRECISION_BF16);
            TransformerState *state = new_state(2, LENGTH);
            Tensor *x = tape_input(tape, cut(s, s.x, 0, 4), shape(2, 4, width));
            nn_transformer_prefill(tape, state, x, NULL);
            x = tape_input(tape, cut(s, s.x, 4, 1), shape(2, width));
            assert_close(test_values(nn_transformer_step(state, x)), cut(s, s.out, 4, 1), 2 * width,
                         0.02);
            nn_transformer_state_free(state);
        }
        end();
    }
}
END_TEST

/* ---------------------------------------------------------------------------- resets and copies */
static void check_ragged_step(TransformerState *state, Sequences s, const int32_t *n)
{
    Tensor *x = tape_input(tape, ragged(s, s.x, n), shape(s.B, width));
    assert_close(test_values(nn_transformer_step(state, x)), ragged(s, s.out, n), s.B * width,
                 TOLERANCE);
    tape_reset(tape);
}

START_TEST(one_sequence_begins_anew_or_all_do)
{
    for (int j = 0; j < 2; j++) {
        begin(j ? softmax : linear);
        Sequences s = sequences_new(3, LENGTH);
        TransformerState *state = new_state(3, LENGTH);
        step_through(state, s, 0, 3);
        nn_transformer_state_reset(state, 1);
        assert_positions(state, (int32_t[]){ 3, 0, 3 });
        check_ragged_step(state, s, (int32_t[]){ 3, 0, 3 });
        check_ragged_step(state, s, (int32_t[]){ 4, 1, 4 });
        nn_transformer_state_reset(state, NN_ALL_SEQUENCES);
        assert_positions(state, (int32_t[]){ 0, 0, 0 });
        step_through(state, s, 0, LENGTH);
        nn_transformer_state_free(state);
        end();
    }
}
END_TEST

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

START_TEST(a_copy_goes_on_as_the_original_would)
{
    for (int j = 0; j < 2; j++) {
        begin(j ? softmax : linear);
        Sequences s = sequences_new(3, LENGTH);
        TransformerState *state = new_state(3, LENGTH), *wide = new_state(2, LENGTH + 3);
        step_through(state, s, 0, 2);
        for (int64_t b = 0; b < 2; b++)
            nn_transformer_state_copy(wide, b, state, 2);
        assert_positions(wide, (int32_t[]){ 2, 2 });
        step_through(wide, branches(s, 2, 2), 2, LENGTH);
        nn_transformer_state_copy(state, 0, state, 1);
        nn_transformer_state_copy(state, 2, state, 1);
        nn_transformer_state_copy(state, 1, state, 1);
        step_through(state, branches(s, 1, 3), 2, LENGTH);
        nn_transformer_state_free(state);
        nn_transformer_state_free(wide);
        end();
    }
}
END_TEST

/* ---------------------------------------------------------------------------------------- files */
static char path[64];

static const char *file_path(void)
{
    snprintf(path, sizeof path, "/tmp/tapegrad-generation-%ld", (long)getpid());
    return path;
}

START_TEST(a_loaded_state_goes_on_as_the_saved_one_would)
{
    for (int j = 0; j < 2; j++) {
        begin(j ? softmax : linear);
        Sequences s = sequences_new(3, LENGTH);
        TransformerState *state = new_state(3, LENGTH), *other = new_state(3, LENGTH);
        step_through(state, s, 0, 3);
        nn_transformer_state_reset(state, 1);
        ck_assert_msg(nn_transformer_state_save(state, file_path()), "%s", tapegrad_error());
        nn_transformer_state_free(state);
        step_through(other, s, 0, 1);
        ck_assert_msg(nn_transformer_state_load(other, path), "%s", tapegrad_error());
        assert_positions(other, (int32_t[]){ 3, 0, 3 });
        check_ragged_step(other, s, (int32_t[]){ 3, 0, 3 });
        check_ragged_step(other, s, (int32_t[]){ 4, 1, 4 });
        nn_transformer_state_free(other);
        unlink(path);
        end();
    }
}
END_TEST

static void refuse(TransformerState *state, const char *sentence)
{
    ck_assert(!nn_transformer_state_load(state, path));
    ck_assert_msg(strstr(tapegrad_error(), sentence) != NULL, "\"%s\" lacks \"%s\"",
                  tapegrad_error(), sentence);
}

/* A file with another number of sequences or positions is refused. */
static void refuse_sizes(TransformerState *into, int64_t sequences, int64_t max_length,
                         const char *sentence)
{
    TransformerState *state = new_state(sequences, max_length);
    ck_assert(nn_transformer_state_save(state, file_path()));
    refuse(into, sentence);
    nn_transformer_state_free(state);
}

/* Saves the state with other counts in the file. */
static void save_with_counts(const TransformerState *state, const int32_t *counts)
{
    ck_assert(nn_transformer_state_save(state, file_path()));
    TensorFile *file = tensor_file_open(path);
    FileEntry entries[16];
    const int count = tensor_file_count(file);
    for (int i = 0; i < count; i++) {
        entries[i] = *tensor_file_entry(file, i);
        if (strcmp(entries[i].name, "counts") == 0)
            entries[i].data = counts;
    }
    ck_assert(tensor_file_save(entries, count, NULL, 0, path));
    tensor_file_close(file);
}

static void cut_file(long length)
{
    ck_assert_int_eq(truncate(path, length), 0);
}

START_TEST(a_file_that_does_not_fit_changes_nothing)
{
    for (int j = 0; j < 2; j++) {
        begin(j ? softmax : linear);
        Sequences s = sequences_new(2, LENGTH);
        TransformerState *state = new_state(2, LENGTH);
        step_through(state, s, 0, 2);
        refuse_sizes(state, 3, LENGTH, "shape");
        refuse_sizes(state, 2, LENGTH + 1, j ? "shape" : "max_length is 7, expected 6");
        save_with_counts(state, (int32_t[]){ 1, -1 });
        refuse(state, "counts[1] is -1, expected 0 to 6");
        save_with_counts(state, (int32_t[]){ 7, 1 });
        refuse(state, "counts[0] is 7, expected 0 to 6");
        ck_assert(nn_transformer_state_save(state, path));
        cut_file(200);
        refuse(state, path);
        cut_file(3);
        refuse(state, path);
        unlink(path);
        refuse(state, strerror(ENOENT));
        step_through(state, s, 2, LENGTH);
        nn_transformer_state_free(state);
        end();
    }
}
END_TEST

START_TEST(another_transformers_file_is_refused)
{
    begin(softmax);
    TransformerState *state = new_state(2, LENGTH);
    ck_assert(nn_transformer_state_save(state, file_path()));
    nn_transformer_state_free(state);
    end();
    begin(linear);
    state = new_state(2, LENGTH);
    refuse(state, "layers.0.sums");
    nn_transformer_state_free(state);
    end();
    begin((TransformerConfig){ .layers = 3 });
    state = new_state(2, LENGTH);
    ck_assert(nn_transformer_state_save(state, path));
    nn_transformer_state_free(state);
    end();
    begin(linear);
    state = new_state(2, LENGTH);
    refuse(state, "has 5 entries, expected 4: it belongs to another transformer");
    nn_transformer_state_free(state);
    end();
    unlink(path);
}
END_TEST

/* --------------------------------------------------------------------------------------- memory */
static void check_memory(TransformerConfig config, int64_t B)
{
    begin(config);
    if (B == MANY)
        device_set_threads(2);
    const int max_length = device_is_cuda(device) ? 6 : 40; /* the emulated device is slow */
    TransformerState *state = new_state(B, max_length);
    Tensor *x = tape_persistent(tape, shape(B, width));
    tensor_write(x, test_normal(2, B * width));
    nn_transformer_step(state, x);
    const DeviceMemory first = device_memory(device);
    const int64_t mallocs_first = mallocs;
    device_reset_peak(device);
    for (int n = 1; n < max_length; n++)
        nn_transformer_step(state, x);
    const int64_t mallocs_last = mallocs;
    const DeviceMemory last = device_memory(device);
    ck_assert_uint_eq(last.current, first.current);
    ck_assert_uint_eq(last.peak, first.current);
    ck_assert_uint_eq(last.reserved, first.reserved);
    if (!device_is_cuda(device))
        ck_assert_int_eq(mallocs_last, mallocs_first);
    nn_transformer_state_free(state);
    end();
}

START_TEST(memory_stays_what_it_is_after_the_first_step)
{
    for (int j = 0; j < 2; j++) {
        check_memory(j ? softmax : linear, 1);
        check_memory(j ? softmax : linear, MANY);
    }
}
END_TEST

START_TEST(the_state_of_linear_attention_does_not_grow_with_max_length)
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
END_TEST

START_TEST(more_threads_may_come_later)
{
    begin(linear);
    device_set_threads(1);
    Sequences s = sequences_new(MANY, LENGTH);
    TransformerState *state = new_state(MANY, LENGTH);
    step_through(state, s, 0, 2);
    device_set_threads(4);
    step_through(state, s, 2, LENGTH);
    nn_transformer_state_free(state);
    end();
}
END_TEST

/* From the current position of the sequences: prefill of 3 positions at position 0, then decode
 * steps up to position 5. Returns the last result. */
static const Real *prompt_and_steps(TransformerState *state, Sequences s)
{
    int32_t n[2];
    tensor_read_i32(nn_transformer_state_positions(state), n);
    ck_assert_int_eq(n[0], n[1]);
    if (n[0] == 0) {
        Tensor *x = tape_input(tape, cut(s, s.x, 0, 3), shape(s.B, 3, width));
        nn_transformer_prefill(tape, state, x, NULL);
        n[0] = 3;
    }
    ck_assert_int_ge(n[0], 3);
    Tensor *out = NULL;
    for (; n[0] < 5; n[0]++)
        out = nn_transformer_step(state, tape_input(tape, cut(s, s.x, n[0], 1), shape(s.B, width)));
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
        ck_assert_msg(strstr(tapegrad_error(), "memory is exhausted") != NULL, "%s",
                      tapegrad_error());
        tape_reset(tape);
        state = state ? state : new_state(s.B, LENGTH);
        ck_assert_mem_eq(prompt_and_steps(state, s), expected,
                         (size_t)(s.B * width) * sizeof(Real));
    }
    nn_transformer_state_free(state);
    return happened;
}

START_TEST(exhausted_memory_changes_nothing)
{
    for (int j = 0; j < 2; j++) {
        begin(j ? softmax : linear);
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
END_TEST

START_TEST(exhausted_memory_spoils_no_file)
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
            ck_assert_msg(strstr(tapegrad_error(), "memory is exhausted") != NULL, "%s",
                          tapegrad_error());
        }
    unlink(path);
    nn_transformer_state_free(state);
    end();
}
END_TEST

/* -------------------------------------------------------------------------------------- replays */
typedef struct Replayed {
    TransformerState *state;
    Tensor *x, *out;
} Replayed;

static Replayed replayed_new(int64_t B, int64_t max_length)
{
    return (Replayed){ .state = new_state(B, max_length),
                       .x = tape_persistent(tape, shape(B, width)) };
}

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

static void replay_all(Replayed *replayed, Sequences s)
{
    for (int64_t n = 0; n < LENGTH; n++) {
        tensor_write(replayed->x, cut(s, s.x, n, 1));
        tape_replay(tape, replayed_step, replayed);
        assert_close(test_values(replayed->out), cut(s, s.out, n, 1), s.B * width, TOLERANCE);
    }
}

/* One replay more than max_length. */
static void replay_too_often(Replayed *replayed, int64_t B)
{
    if (!device_is_cuda(device)) {
        assert_raises("nn_transformer_step: sequence 0 already has max_length (6) positions",
                      tape_replay(tape, replayed_step, replayed));
        return;
    }
    tape_replay(tape, replayed_step, replayed);
    const Real *out = test_values(replayed->out);
    for (int64_t i = 0; i < B * width; i++)
        ck_assert(isnan(out[i]));
}

static void check_replays(TransformerConfig config, int64_t B)
{
    int32_t last[MANY];
    for (int64_t b = 0; b < B; b++)
        last[b] = LENGTH - 1;
    begin(config);
    Sequences s = sequences_new(B, LENGTH);
    Replayed replayed = replayed_new(B, LENGTH);
    replay_all(&replayed, s);
    nn_transformer_state_reset(replayed.state, NN_ALL_SEQUENCES);
    replay_all(&replayed, s);
    replay_too_often(&replayed, B);
    assert_positions(replayed.state, last);
    assert_raises("nn_transformer_step: sequence 0 already has max_length (6) positions",
                  nn_transformer_step(replayed.state, replayed.x));
    nn_transformer_state_reset(replayed.state, NN_ALL_SEQUENCES);
    prefill(replayed.state, s, 0, 2);
    step_through(replayed.state, s, 2, LENGTH);
    nn_transformer_state_free(replayed.state);
    end();
}

START_TEST(a_step_may_be_replayed)
{
    check_replays(linear, 2);
    check_replays(softmax, 2);
    check_replays(softmax, 9);
    check_replays((TransformerConfig){ .heads = 2, .head_dim = 32 }, 9);
}
END_TEST

START_TEST(resets_and_copies_may_be_replayed)
{
    for (int j = 0; j < 2; j++) {
        begin(j ? softmax : linear);
        Sequences s = sequences_new(2, LENGTH);
        Replayed replayed = replayed_new(2, LENGTH);
        for (int32_t n = 0; n < 3; n++) {
            tensor_write(replayed.x, ragged(s, s.x, (int32_t[]){ 0, n }));
            tape_replay(tape, reset_and_step, &replayed);
            assert_close(test_values(replayed.out), ragged(s, s.out, (int32_t[]){ 0, n }),
                         2 * width, TOLERANCE);
        }
        assert_positions(replayed.state, (int32_t[]){ 1, 3 });
        Sequences both = branches(s, 1, 2);
        for (int32_t n = 3; n < LENGTH; n++) {
            tensor_write(replayed.x, cut(both, both.x, n, 1));
            tape_replay(tape, copy_and_step, &replayed);
            assert_close(test_values(replayed.out), cut(both, both.out, n, 1), 2 * width,
                         TOLERANCE);
        }
        nn_transformer_state_free(replayed.state);
        end();
    }
}
END_TEST

typedef struct Positioned {
    TransformerState *state;
    Tensor *table, *row;
} Positioned;

/* x is the row of the table at the current position. */
static void step_at_position(void *context)
{
    Positioned *p = context;
    p->row = op_embedding(tape, p->table, nn_transformer_state_positions(p->state));
    nn_transformer_step(p->state, p->row);
}

START_TEST(positions_are_indices_in_a_replayed_step)
{
    begin(linear);
    Positioned p = { .table = tape_persistent(tape, shape(LENGTH, width)) };
    Real *table = test_normal(3, LENGTH * width);
    tensor_write(p.table, table);
    p.state = new_state(2, LENGTH);
    for (int64_t n = 0; n < LENGTH; n++) {
        tape_replay(tape, step_at_position, &p);
        const Real *row = test_values(p.row);
        for (int64_t b = 0; b < 2; b++)
            ck_assert_mem_eq(row + b * width, table + n * width, (size_t)width * sizeof(Real));
    }
    nn_transformer_state_free(p.state);
    end();
}
END_TEST

/* --------------------------------------------------------------------------------------- misuse */
static void refuse_attention(AttentionKind attention, const char *sentence)
{
    begin((TransformerConfig){ .attention = attention });
    assert_raises(sentence, new_state(1, LENGTH));
    end();
}

START_TEST(states_are_of_causal_linear_or_softmax_attention)
{
    refuse_attention(ATTENTION_LINEAR,
                     "nn_transformer_state: the transformer's attention is ATTENTION_LINEAR, "
                     "expected ATTENTION_CAUSAL_LINEAR or ATTENTION_CAUSAL_SOFTMAX");
    refuse_attention(ATTENTION_SOFTMAX,
                     "nn_transformer_state: the transformer's attention is ATTENTION_SOFTMAX, "
                     "expected ATTENTION_CAUSAL_LINEAR or ATTENTION_CAUSAL_SOFTMAX");
    refuse_attention(ATTENTION_CAUSAL_LSH,
                     "nn_transformer_state: the transformer's attention is ATTENTION_CAUSAL_LSH, "
                     "expected ATTENTION_CAUSAL_LINEAR or ATTENTION_CAUSAL_SOFTMAX");
    refuse_attention(ATTENTION_LSH,
                     "nn_transformer_state: the transformer's attention is ATTENTION_LSH, "
                     "expected ATTENTION_CAUSAL_LINEAR or ATTENTION_CAUSAL_SOFTMAX");
}
END_TEST

START_TEST(a_config_must_make_sense)
{
    begin(linear);
    assert_raises("nn_transformer_state: sequences is -1, expected 1 to 2147483646, or 0 for the "
                  "default",
                  new_state(-1, LENGTH));
    assert_raises(
        "nn_transformer_state: max_length is 2147483647, expected 1 to 2147483646, or 0 for "
        "the default",
        new_state(1, INT32_MAX));
    assert_raises(
        "nn_transformer_state: the precision is 2, expected PRECISION_FLOAT32 or PRECISION_TF32",
        nn_transformer_state(&transformer, (GenerationConfig){ .precision = PRECISION_BF16 }));
#ifdef TAPEGRAD_DOUBLE
    assert_raises(
        "nn_transformer_state: tf32 is not available in a double-precision build",
        nn_transformer_state(&transformer, (GenerationConfig){ .precision = PRECISION_TF32 }));
#else
    if (!device_is_cuda(device))
        assert_raises(
            "nn_transformer_state: tf32 needs a CUDA device, the transformer is on cpu",
            nn_transformer_state(&transformer, (GenerationConfig){ .precision = PRECISION_TF32 }));
#endif
    assert_raises("nn_transformer_state: the transformer is NULL",
                  nn_transformer_state(NULL, (GenerationConfig){ 0 }));
    TransformerState *state = nn_transformer_state(&transformer, (GenerationConfig){ 0 });
    ck_assert_int_eq((int)tensor_count(nn_transformer_state_positions(state)), 1);
    nn_transformer_state_free(state);
    nn_transformer_state_free(NULL);
    end();
}
END_TEST

START_TEST(a_steps_x_must_fit)
{
    begin(linear);
    TransformerState *state = new_state(2, 1);
    Real *values = test_normal(1, 3 * width);
    assert_raises("nn_transformer_step: x is NULL", nn_transformer_step(state, NULL));
    assert_raises("nn_transformer_step: x is [3,15], expected [2,15]: [sequences, width]",
                  nn_transformer_step(state, tape_input(tape, values, shape(3, width))));
    assert_raises(
        "nn_transformer_step: x requires a gradient, and none passes through a step; call "
        "tape_set_recording(tape, false) before x is made",
        nn_transformer_step(state, tape_variable(tape, values, shape(2, width))));
    assert_raises("nn_transformer_step: x has dtype int32, expected Real",
                  nn_transformer_step(state, nn_transformer_state_positions(state)));
    Tensor *x = tape_input(tape, values, shape(2, width));
    nn_transformer_step(state, x);
    assert_raises("nn_transformer_step: sequence 0 already has max_length (1) positions",
                  nn_transformer_step(state, x));
    nn_transformer_state_reset(state, 0);
    assert_raises("nn_transformer_step: sequence 1 already has max_length (1) positions",
                  nn_transformer_step(state, x));
    assert_positions(state, (int32_t[]){ 0, 0 });
    nn_transformer_state_free(state);
    end();
}
END_TEST

START_TEST(a_prompt_must_fit)
{
    begin(softmax);
    TransformerState *state = new_state(2, 3);
    Real *values = test_normal(1, 8 * width);
    Tensor *x = tape_input(tape, values, shape(2, 3, width));
    tape_set_recording(tape, true);
    assert_raises("nn_transformer_prefill: the tape is recording, and no gradient passes into a "
                  "state; call tape_set_recording(tape, false) first",
                  nn_transformer_prefill(tape, state, x, NULL));
    tape_set_recording(tape, false);
    tape_set_training(tape, true);
    nn_transformer_prefill(tape, state, x, NULL); /* no dropout: training changes nothing */
    nn_transformer_state_reset(state, NN_ALL_SEQUENCES);
    transformer.layer[1].dropout = nn_dropout((Real)0.5);
    TransformerState *with_dropout = new_state(2, 3);
    assert_raises("nn_transformer_prefill: the tape is training, and decode steps have no dropout; "
                  "call tape_set_training(tape, false) first",
                  nn_transformer_prefill(tape, with_dropout, x, NULL));
    tape_set_training(tape, false);
    nn_transformer_prefill(tape, with_dropout, x, NULL);
    nn_transformer_state_free(with_dropout);
    assert_raises(
        "nn_transformer_prefill: x is [2,15], expected [2, N, 15]: [sequences, N, width]",
        nn_transformer_prefill(tape, state, tape_input(tape, values, shape(2, width)), NULL));
    assert_raises(
        "nn_transformer_prefill: sequence 0 would have 4 positions, max_length is 3",
        nn_transformer_prefill(tape, state, tape_input(tape, values, shape(2, 4, width)), NULL));
    assert_raises("nn_transformer_prefill: lengths is [3], expected [2]: [sequences]",
                  nn_transformer_prefill(tape, state, x,
                                         tape_input_i32(tape, (int32_t[]){ 1, 1, 1 }, shape(3))));
    assert_raises("nn_transformer_prefill: lengths[1] is 4, expected 1 to 3, the number of "
                  "positions",
                  nn_transformer_prefill(tape, state, x,
                                         tape_input_i32(tape, (int32_t[]){ 1, 4 }, shape(2))));
    nn_transformer_prefill(tape, state, x, tape_input_i32(tape, (int32_t[]){ 1, 2 }, shape(2)));
    nn_transformer_state_reset(state, 0);
    assert_raises("nn_transformer_prefill: sequence 1 already has 2 positions; softmax "
                  "attention prefills empty sequences only",
                  nn_transformer_prefill(tape, state, x, NULL));
    nn_transformer_state_free(state);
    end();
}
END_TEST

START_TEST(copies_and_resets_must_fit)
{
    begin(linear);
    TransformerState *state = new_state(2, 3), *shorter = new_state(1, 1);
    assert_raises("nn_transformer_state_reset: there is no sequence 2, the state has 2",
                  nn_transformer_state_reset(state, 2));
    assert_raises("nn_transformer_state_copy: there is no sequence -1, the state has 2",
                  nn_transformer_state_copy(state, -1, state, 0));
    assert_raises("nn_transformer_state_copy: there is no sequence 1, the state has 1",
                  nn_transformer_state_copy(state, 0, shorter, 1));
    Tensor *x = tape_input(tape, test_normal(1, 2 * width), shape(2, width));
    nn_transformer_step(state, x);
    nn_transformer_state_copy(shorter, 0, state, 0);
    nn_transformer_step(state, x);
    assert_raises("nn_transformer_state_copy: sequence 0 has 2 positions, max_length of the "
                  "destination is 1",
                  nn_transformer_state_copy(shorter, 0, state, 0));
    Params *others = params_new(device, 1);
    transformer = nn_transformer(others, "", linear);
    TransformerState *other = new_state(1, 3);
    assert_raises("nn_transformer_state_copy: the states belong to different transformers",
                  nn_transformer_state_copy(state, 0, other, 0));
    nn_transformer_state_free(other);
    nn_transformer_state_free(state);
    nn_transformer_state_free(shorter);
    params_free(others);
    end();
}
END_TEST

int main(void)
{
    setenv("TAPEGRAD_CUDA_EARLY", "1", 0); /* the emulation checks dependent launches */
    const TTest *const tests[] = { a_step_is_the_parallel_form_at_its_position,
                                   with_every_feature_map,
                                   with_every_arrangement_of_a_layer,
                                   with_ragged_and_with_whole_sizes,
                                   with_great_heads,
                                   with_heads_of_32_and_64,
                                   with_more_heads_than_blocks,
#ifndef TAPEGRAD_DOUBLE
                                   with_products_in_tf32,
#endif
                                   threads_and_other_sequences_change_no_bit_on_the_cpu,
                                   a_result_may_be_the_next_x,
                                   steps_go_on_from_a_prompt_of_every_length,
                                   a_prompt_suits_every_feature_map,
                                   linear_attention_takes_a_prompt_anywhere,
                                   prompts_may_have_different_lengths,
                                   padding_of_short_prompts_may_exceed_max_length,
                                   a_prompt_may_be_in_bf16,
                                   one_sequence_begins_anew_or_all_do,
                                   a_copy_goes_on_as_the_original_would,
                                   a_loaded_state_goes_on_as_the_saved_one_would,
                                   a_file_that_does_not_fit_changes_nothing,
                                   another_transformers_file_is_refused,
                                   memory_stays_what_it_is_after_the_first_step,
                                   the_state_of_linear_attention_does_not_grow_with_max_length,
                                   more_threads_may_come_later,
                                   exhausted_memory_changes_nothing,
                                   exhausted_memory_spoils_no_file,
                                   a_step_may_be_replayed,
                                   resets_and_copies_may_be_replayed,
                                   positions_are_indices_in_a_replayed_step,
                                   states_are_of_causal_linear_or_softmax_attention,
                                   a_config_must_make_sense,
                                   a_steps_x_must_fit,
                                   a_prompt_must_fit,
                                   copies_and_resets_must_fit,
                                   NULL };
    return run_tests("generation", tests);
}
