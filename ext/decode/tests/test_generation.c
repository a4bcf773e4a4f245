/* Generation: every decode step gives the result of the parallel form at its position, also after a
 * prompt, a reset or a copy, and in a replay. */
#include "ext/decode/tests/generation.h"

#include <math.h>

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
    static const int64_t batches[] = { 1, 3, 17, 40, MANY }; /* the last: two and three groups */
    for (int i = 0; i < 15; i++)
        check_positions(kinds[i % 3], batches[i / 3]);
}

TEST(with_gates_and_with_layers_that_differ)
{
    for (int i = 3; i < KINDS; i++)
        check_positions(kinds[i], 1 + i);
}

TEST(with_every_feature_map)
{
    for (int features = 0; features <= FEATURES_FOURIER; features++) {
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

TEST(more_threads_may_come_later)
{
    test_set_threads(1);
    const Setup u = begin_with(linear, MANY, LENGTH);
    step_through(u.state, u.s, 0, 2);
    test_set_threads(4);
    step_through(u.state, u.s, 2, LENGTH);
    end_with(u);
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

/* --------------------------------------------------------------------------------------- windows
 * The KV cache is a ring buffer, which these sequences pass several times. */
enum { LONG = 70 };

TEST(with_windows_much_shorter_than_the_sequence)
{
    static const CausalSoftmaxConfig limits[] = {
        { .window = 1 },
        { .window = 7 },
        { .window = 8, .sinks = 3 },
        { .window = 69 },
        { .window = 70 },
        { .window = 1, .sinks = 100 },
        { .sinks = 3 },
        { .window = 30, .sinks = 40 },
    };
    for (int i = 0; i < 8; i++) {
        begin((TestConfig){ .attention = KIND_CAUSAL_SOFTMAX, .softmax = limits[i] });
        const Sequences s = sequences_new(2, LONG);
        TransformerState *state = new_state(2, LONG);
        step_through(state, s, 0, LONG);
        nn_transformer_state_free(state);
        end();
    }
}

TEST(a_prompt_fills_the_ring_buffer_anywhere)
{
    begin((TestConfig){ .attention = KIND_CAUSAL_SOFTMAX, .softmax = { 8, .sinks = 3 } });
    const Sequences s = sequences_new(3, LONG);
    for (int32_t n = 1; n < 40; n++) {
        const int32_t lengths[] = { n, 1 + n / 3, 40 - n };
        TransformerState *state = new_state(3, LONG), *other = new_state(3, LONG + n);
        nn_transformer_prefill(tape, state, prompt(cut(s, s.x, 0, 40), 3, 40),
                               tape_input_i32(tape, lengths, shape(3)));
        ragged_step(state, s, lengths);
        for (int64_t b = 0; b < 3; b++)
            nn_transformer_state_copy(other, b, state, b);
        for (int32_t i = 1; i < 12; i++)
            ragged_step(other, s, (int32_t[]){ lengths[0] + i, lengths[1] + i, lengths[2] + i });
        nn_transformer_state_free(state);
        nn_transformer_state_free(other);
    }
    end();
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
    for (int features = 0; features <= FEATURES_FOURIER; features++) {
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

/* -------------------------------------------------------------------------------------- replays */
#define FULL "nn_transformer_step: sequence 0 already has max_length (6) positions"

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

/* Both begin again, sequence 1 as a copy of sequence 0. */
static void restart(TransformerState *state)
{
    nn_transformer_state_reset(state, 0);
    nn_transformer_state_copy(state, 1, state, 0);
}

static void restart_and_step(void *context)
{
    restart(((Replayed *)context)->state);
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
        for (int i = 0; i < 3; i++)
            replay(&replayed, restart_and_step, u.s, (int32_t[]){ 0, 0 });
        assert_positions(u.state, (int32_t[]){ 1, 1 });
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

static void step_at_first_position(void *context)
{
    restart(((Replayed *)context)->state);
    step_at_position(context);
}

/* Replays a step of both sequences at position n. */
static void replay_at(Replayed *p, void (*step)(void *), const Real *table, int64_t n)
{
    tape_replay(tape, step, p);
    for (int64_t b = 0; b < 2; b++)
        ck_assert_mem_eq(test_values(p->x) + b * width, table + n * width,
                         (size_t)width * sizeof(Real));
}

TEST(positions_are_indices_in_a_replayed_step)
{
    const Setup u = begin_with(linear, 2, LENGTH);
    Replayed p = { .state = u.state, .out = tape_persistent(tape, shape(LENGTH, width)) };
    const Real *table = test_normal(3, LENGTH * width);
    tensor_write(p.out, table);
    for (int64_t n = 0; n < LENGTH; n++)
        replay_at(&p, step_at_position, table, n);
    for (int i = 0; i < 3; i++)
        replay_at(&p, step_at_first_position, table, 0);
    end_with(u);
}

int main(void)
{
    setenv("TAPEGRAD_CUDA_EARLY", "1", 0); /* the emulation checks dependent launches */
    return test_main("generation", NULL, NULL);
}
