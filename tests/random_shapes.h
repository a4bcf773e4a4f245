/* Shapes of random sizes for the operations of tests/operations.h and tests/operation_table.h:
 *
 *     RANDOM_SHAPES=500 SEED=7 build/tests/test_operations
 *
 * tests 500 cases of each row in place of the tables' cases (`make oracle`). */
#ifndef TAPEGRAD_TESTS_RANDOM_SHAPES_H
#define TAPEGRAD_TESTS_RANDOM_SHAPES_H

#include "tests/operations.h"

/* Random sizes, five per case: B and H up to 3; N, M and K up to 40. */
enum { SIZES = 5, MAX_FEW = 3, MAX_SIZE = 40, MAX_CASE_ELEMENTS = 6000 };

#define B_ n[0]
#define H_ n[1]
#define N_ n[2]
#define M_ n[3]
#define K_ n[4]
#define ONE_OR(size, by) ((by) % 2 ? (size) : 1)
#define STATES(B) QKVS(B, N_, H_, M_, K_, B)
#define DECAYED(B, states, last) DECAYS(B, N_, H_, M_, K_, states, last)
/* clang-format off */
#define RANDOM_ROWS(ROW)                                                                           \
    ROW(matmul, { S(B_, N_, K_), S(B_, K_, M_) }) ROW(matmul_tn, { S(B_, K_, N_), S(K_, M_) })     \
    ROW(matmul_nt, { S(B_, N_, K_), S(B_, M_, K_) })                                               \
    ROW(linear, { S(B_, N_, K_), P(M_, K_), P(M_) }) ROW(linear_alone, { S(N_, K_), P(M_, K_) })   \
    ROW(linear_relu, { S(N_, K_), P(M_, K_), P(M_) })                                              \
    ROW(linear_gelu, { S(N_, K_), P(M_, K_), P(M_) })                                              \
    ROW(linear_gelu_tanh, { S(B_, N_, K_), P(M_, K_), P(M_) })                                     \
    ROW(linear_silu, { S(N_, K_), P(M_, K_), P(M_) })                                              \
    ROW(add_row, { S(B_, N_, M_), S(M_) }) ROW(dropout, { S(B_, N_, M_) })                         \
    ROW(where, { S(ONE_OR(B_, K_), N_ + 2, M_), S(B_, 1, M_), WEIGHTS(N_ + 2, ONE_OR(M_, H_)) })   \
    ROW(used_twice, { S(N_, M_) }) ROW(softmax, { S(B_, N_, M_) })                                 \
    ROW(log_softmax, { S(N_, M_ * K_) }) ROW(layernorm, { S(B_, N_, M_), P(M_), P(M_) })           \
    ROW(residual_layernorm, { S(N_, M_ + 1), S(N_, M_ + 1), P(M_ + 1), P(M_ + 1) })                \
    ROW(layernorm_without_bias, { S(B_, N_, M_) })                                                 \
    ROW(residual_without_bias, { S(N_, M_ + 1), S(N_, M_ + 1), P(M_ + 1) })                        \
    ROW(residual_undropped, { S(N_, M_ + 1), S(N_, M_ + 1), P(M_ + 1) })                           \
    ROW(sum, { S(B_, N_, M_) }) ROW(sum_rows, { S(B_, N_, M_) }) ROW(sum_first, { S(N_, M_) })     \
    ROW(sum_middle, { S(B_, N_, H_, M_) }) ROW(mean, { S(N_, M_) })                                \
    ROW(mean_rows, { S(B_, N_, M_) }) ROW(mean_middle, { S(B_, N_, M_) })                          \
    ROW(variance, { S(N_, M_) }) ROW(variance_rows, { S(N_, M_) })                                 \
    ROW(variance_middle, { S(B_, N_, M_) })                                                        \
    ROW(max, { S(N_, M_) }) ROW(max_rows, { S(B_, N_, M_) }) ROW(max_middle, { S(B_, N_, M_) })    \
    ROW(cumulative_sum, { S(B_, N_, M_) }) ROW(reverse_cumulative_sum, { S(B_, N_, M_) })          \
    ROW(mean_squared_error, { S(N_, M_), S(N_, M_) })                                              \
    ROW(cross_entropy, { S(B_, N_, M_), INTEGERS((int32_t)M_, B_, N_) })                           \
    ROW(accuracy, { S(B_, N_, H_, 1 + M_ % 16), INTEGERS((int32_t)(1 + M_ % 16), B_, N_, H_) })    \
    ROW(weighted_accuracy, { S(B_, N_ + 1, H_, 1 + M_ % 16),                                       \
                             INTEGERS((int32_t)(1 + M_ % 16), B_, N_ + 1, H_),                     \
                             WEIGHTS(B_, N_ + 1, H_) })                                            \
    ROW(weighted_cross_entropy, { S(N_ + 1, M_), INTEGERS((int32_t)M_, N_ + 1), WEIGHTS(N_ + 1) }) \
    ROW(embedding, { P(M_, K_), INTEGERS((int32_t)M_, B_, N_) }) ROW(reshape, { S(3, 2, 5) })      \
    ROW(scatter_add, { S(B_, N_, M_), INTEGERS(7, B_, N_) })                                       \
    ROW(transpose, { S(N_, M_, H_) }) ROW(transpose_middle, { S(B_, N_, M_, H_) })                 \
    ROW(transpose_far, { S(N_, B_, H_, M_) })                                                      \
    ROW(permute, { S(B_, N_, M_, H_) }) ROW(select, { S(B_, N_ + 1, M_) })                         \
    ROW(one_hot, { S(B_, N_, M_), INTEGERS((int32_t)M_, B_, N_) })                                 \
    ROW(broadcast_to, { S(ONE_OR(4, B_), ONE_OR(7, N_), ONE_OR(5, H_), ONE_OR(16, M_)) })          \
    ROW(repeat_heads, { S(B_, N_, H_, M_) })                                                       \
    ROW(concat, { S(B_, N_, M_), S(B_, N_, K_) })                                                  \
    ROW(concat_middle, { S(B_, N_, M_), S(B_, K_, M_) })                                           \
    ROW(stack, { S(B_, N_, M_), S(B_, N_, M_) })                                                   \
    ROW(gather, { S(B_, N_, M_), INTEGERS((int32_t)M_, B_, N_, K_) })                              \
    ROW(slice, { S(B_, N_ + 4, M_) }) ROW(slice_half, { S(N_, M_ + 1) })                           \
    ROW(split, { S(N_, 3 * M_) })                                                                  \
    ROW(linear_attention, { S(B_, N_, H_, M_), S(B_, K_, H_, M_), S(B_, K_, H_, N_) })             \
    ROW(softmax_attention, { S(B_, N_, H_, M_), S(B_, K_, H_, M_), S(B_, K_, H_, N_) })            \
    ROW(masked_attention, { S(2, N_, H_, M_), S(2, K_, H_, M_), S(2, K_, H_, N_) })                \
    ROW(causal_softmax_attention, { QKV(B_, N_, H_, M_, K_) })                                     \
    ROW(packed_softmax_attention, { S(B_, N_, 3 * H_, M_) })                                       \
    ROW(additive_mask, { S(B_, N_, H_, M_), S(B_, K_, H_, M_), S(B_, K_, H_, N_) })                \
    ROW(causal_additive_mask, { QKV(B_, N_, H_, M_, K_) })                                         \
    ROW(packed_additive_mask, { S(B_, N_, 3 * H_, M_) })                                           \
    ROW(decaying_softmax_attention, { QKV(B_, N_, H_, M_, K_), P(B_, N_, H_) })                    \
    ROW(strong_decay_of_softmax, { QKV(B_, N_, H_, M_, K_), P(B_, N_, H_) })                       \
    ROW(decaying_key_lengths, { QKV(2, N_, H_, M_, K_), P(2, N_, H_) })                            \
    ROW(packed_decaying_mask, { S(B_, N_, 3 * H_, M_), P(B_, N_, H_) })                            \
    ROW(window, { QKV(B_, N_, H_, M_, K_) })                                                       \
    ROW(window_and_sinks, { QKV(B_, N_, H_, M_, K_) })                                             \
    ROW(prefix, { QKV(B_, N_, H_, M_, K_) })                                                       \
    ROW(packed_window, { S(B_, N_, 3 * H_, M_) })                                                  \
    ROW(documents, { QKV(1, N_, H_, M_, K_) })                                                     \
    ROW(causal_documents, { QKV(1, N_, H_, M_, K_) })                                              \
    ROW(limited_documents, { QKV(1, N_, H_, M_, K_) })                                             \
    ROW(decaying_window, { QKV(1, N_, H_, M_, K_), P(1, N_, H_) })                                 \
    ROW(sink_logits, { QKV(B_, N_, H_, M_, K_), P(H_) })                                           \
    ROW(sink_logits_of_all_keys, { QKV(B_, N_, H_, M_, K_), P(H_) })                               \
    ROW(packed_sink_logits, { S(B_, N_, 3 * H_, M_), P(H_) })                                      \
    ROW(masked_sink_logits, { QKV(B_, N_, H_, M_, K_), P(H_), P(B_, N_, H_) })                     \
    ROW(causal_linear_attention, { QKV(B_, N_, H_, M_, K_) })                                      \
    ROW(packed_causal_linear_attention, { S(B_, N_, 3 * H_, M_) })                                 \
    ROW(causal_linear_state, { S(B_, N_, H_, M_), S(B_, N_, H_, K_) })                             \
    ROW(packed_causal_linear_state, { S(B_, N_, 3 * H_, M_) })                                     \
    ROW(decaying_state, { S(B_, N_, H_, M_), S(B_, N_, H_, K_), P(B_, N_, H_) })                   \
    ROW(unnormalized_state, { S(2, N_, H_, M_), S(2, N_, H_, K_), P(2, N_, H_) })                  \
    ROW(recurrent, { STATES(B_) }) ROW(chunked, { STATES(B_) })                                    \
    ROW(chunk_parallel, { STATES(B_) }) ROW(quadratic, { STATES(B_) })                             \
    ROW(best_relu, { STATES(B_) }) ROW(best_softplus, { STATES(B_) })                              \
    ROW(offsets_recurrent, { QKVS(1, N_ + 2, H_, M_, K_, 4) })                                     \
    ROW(offsets_chunked, { QKVS(1, N_ + 2, H_, M_, K_, 4) })                                       \
    ROW(offsets_chunk_parallel, { QKVS(1, N_ + 2, H_, M_, K_, 4) })                                \
    ROW(offsets_quadratic, { QKVS(1, N_ + 2, H_, M_, K_, 4) })                                     \
    ROW(lengths_recurrent, { STATES(2) }) ROW(lengths_chunked, { STATES(2) })                      \
    ROW(lengths_chunk_parallel, { STATES(2) }) ROW(lengths_quadratic, { STATES(2) })               \
    ROW(decay_recurrent, { DECAYED(B_, B_, 1) }) ROW(decay_chunked, { DECAYED(B_, B_, 1) })        \
    ROW(decay_from_no_state, { QKV(B_, N_, H_, M_, K_), P(B_, N_, H_) })                           \
    ROW(decay_chunk_parallel, { DECAYED(B_, B_, 1) }) ROW(decay_quadratic, { DECAYED(B_, B_, 1) }) \
    ROW(strong_decay, { DECAYED(B_, B_, 1) }) ROW(decay_lengths, { DECAYED(2, 2, 1) })             \
    ROW(decay_offsets, { DECAYS(1, N_ + 2, H_, M_, K_, 4, 1) })                                    \
    ROW(unnormalized, { DECAYED(B_, B_, 0) })                                                      \
    ROW(unnormalized_chunk_parallel, { DECAYED(B_, B_, 0) })                                       \
    ROW(unnormalized_quadratic, { DECAYED(B_, B_, 0) })                                            \
    ROW(reshape_beside, { S(3, 2, 5) }) ROW(slice_first, { S(1 + N_, M_) })                        \
    ROW(concat_first, { S(B_, N_, M_), S(H_, N_, M_) })                                            \
    ROW(packed_linear_attention, { S(B_, N_, 3 * H_, M_) })                                        \
    ROW(recurrent_softplus, { STATES(B_) }) ROW(quadratic_relu, { STATES(B_) })                    \
    ROW(state_is_query, { QKVS(1, 3, 3, 3, 2, 1) }) /* others make the divisor 0 */                \
    ROW(state_is_value, { QKV(H_, B_, B_, B_, B_), P(H_, B_, B_, B_) })                            \
    ROW(argmax, { S(B_, N_, H_, 1 + M_ % 16) })                                                    \
    EXTENSION_RANDOM_ROWS(ROW)
/* clang-format on */

typedef void DrawShapes(const int64_t *n, Input *inputs);

#define DEFINE_DRAW(name, ...)                                                                     \
    static void draw_##name(const int64_t *n, Input *inputs)                                       \
    {                                                                                              \
        const Input drawn[MAX_INPUTS] = __VA_ARGS__;                                               \
        (void)n;                                                                                   \
        memcpy(inputs, drawn, sizeof drawn);                                                       \
    }
RANDOM_ROWS(DEFINE_DRAW)

static const struct {
    const char *name;
    DrawShapes *draw;
} random_rows[] = {
#define ENTER_DRAW(name, ...) { #name, draw_##name },
    RANDOM_ROWS(ENTER_DRAW)
};

static void draw_unary(const int64_t *n, Input *inputs)
{
    inputs[0] = (Input)S(N_, M_ * K_);
}

/* Any axis of either input may be broadcast. */
static void draw_binary(const int64_t *n, Input *inputs)
{
    inputs[0] = (Input)S(ONE_OR(B_, N_ / 2), N_, ONE_OR(M_, K_));
    inputs[1] = (Input)S(B_, ONE_OR(N_, M_ / 2), ONE_OR(M_, K_ / 2));
}

enum { RANDOM_ROW_COUNT = sizeof random_rows / sizeof *random_rows };

/* The shapes of an operation of tests/operations.h; NULL: it has none. */
static DrawShapes *draw_of(const char *name)
{
    for (int i = 0; i < RANDOM_ROW_COUNT; i++)
        if (strcmp(random_rows[i].name, name) == 0)
            return random_rows[i].draw;
    return NULL;
}

static void draw_shapes(Random *random, DrawShapes *draw, Input *inputs)
{
    int64_t elements;
    do {
        int64_t n[SIZES];
        for (int i = 0; i < SIZES; i++) { /* small sizes as often as large ones */
            const int64_t max = i < 2 ? MAX_FEW : random_integer(random, 1, MAX_SIZE + 1);
            n[i] = random_integer(random, 1, max + 1);
        }
        memset(inputs, 0, MAX_INPUTS * sizeof *inputs);
        draw(n, inputs);
        elements = 0;
        for (int i = 0; i < MAX_INPUTS; i++)
            elements += inputs[i].shape.rank ? shape_count(inputs[i].shape) : 0;
    } while (elements > MAX_CASE_ELEMENTS);
}

#endif
