/* op_rotary, and attention with rotary positions. */
#include "tests/support.h"

#include <math.h>

/* ---------------------------------------------------------------------------------- operation */
/* Pairs and halves, with all elements of a head or some, up to position 10^7, where an angle in
 * float32 has no digit after the point. */
TEST(rotary_rotates_by_exact_angles)
{
    enum { B = 2, N = 4, H = 3, D = 10 };
    const int32_t positions[B * N] = { 0, 1, 2, 1000, 999999, 1000000, 7, 10000000 };
    const Real *xs = test_normal(1, B * N * H * D);
    for (int option = 0; option < 8; option++) {
        const bool halves = option & 1;
        const int64_t dims = option & 2 ? 6 : D, heads = option & 4 ? 2 : H;
        Tape *tape = tape_new(test_device());
        RotaryOptions options = { .dims = dims, .heads = heads, .base = 500, .halves = halves };
        options.positions = tape_input_i32(tape, positions, shape(B, N));
        Tensor *x = tape_input(tape, xs, shape(B, N, H, D));
        const Real *out = test_values(op_rotary(tape, x, options));
        tape_free(tape);
        for (int64_t n = 0; n < B * N * H * D; n += D)
            for (int64_t c = 0; c < D; c++) {
                const bool rotated = c < dims && n / D % H < heads;
                const int64_t i = halves ? c % (dims / 2) : c / 2;
                const int64_t a = halves ? i : 2 * i, b = halves ? i + dims / 2 : a + 1;
                const double t = positions[n / D / H] * pow(500, -2.0 * (double)i / (double)dims);
                const double x_a = (double)xs[n + a % D], x_b = (double)xs[n + b % D];
                const double value =
                    c == a ? x_a * cos(t) - x_b * sin(t) : x_a * sin(t) + x_b * cos(t);
                ck_assert_double_eq_tol((double)out[n + c], rotated ? value : (double)xs[n + c],
                                        sizeof(Real) == 4 ? 1e-6 : 1e-14);
            }
    }
}

/* The last position alone, as a decode step computes it, is that of the whole. */
TEST(rotary_at_a_position_equals_the_whole_sequence)
{
    enum { N = 9, D = 8 };
    const Real *xs = test_normal(1, N * D);
    const int32_t last = N - 1;
    Tape *tape = tape_new(test_device());
    Tensor *x = tape_input(tape, xs, shape(1, N, 1, D));
    Tensor *whole = op_rotary(tape, x, (RotaryOptions){ 0 });
    Tensor *alone =
        op_rotary(tape, op_slice(tape, x, 1, last, 1),
                  (RotaryOptions){ .positions = tape_input_i32(tape, &last, shape(1)) });
    assert_close(test_values(alone), test_values(whole) + last * D, D, 0);
    tape_free(tape);
}

TEST(misuse_of_rotary_raises)
{
    const Real numbers[24] = { 0 };
    const int32_t positions[6] = { 0 };
    Tape *tape = tape_new(test_device());
    Tensor *x = tape_input(tape, numbers, shape(2, 3, 1, 4));
    assert_raises("op_rotary: x is NULL", op_rotary(tape, NULL, (RotaryOptions){ 0 }));
    assert_raises("op_rotary: x is [6,4], expected four axes, [B, N, H, D]",
                  op_rotary(tape, op_reshape(tape, x, shape(6, 4)), (RotaryOptions){ 0 }));
    assert_raises("op_rotary: dims is 3, expected an even number from 2 to 4: x is [2,3,1,4]",
                  op_rotary(tape, x, (RotaryOptions){ .dims = 3 }));
    assert_raises("op_rotary: dims is 6, expected an even number from 2 to 4: x is [2,3,1,4]",
                  op_rotary(tape, x, (RotaryOptions){ .dims = 6 }));
    assert_raises("op_rotary: heads is 2, expected 1 to 1, or 0 for all: x is [2,3,1,4]",
                  op_rotary(tape, x, (RotaryOptions){ .heads = 2 }));
    assert_raises("op_rotary: base is -1, expected more than 0, or 0 for 10000",
                  op_rotary(tape, x, (RotaryOptions){ .base = -1 }));
    assert_raises(
        "op_rotary: positions is [6], expected [3] or [2,3]: x is [2,3,1,4]",
        op_rotary(tape, x,
                  (RotaryOptions){ .positions = tape_input_i32(tape, positions, shape(6)) }));
    tape_free(tape);
}

/* ------------------------------------------------------------------------------------ the kind */
/* Softmax and linear attention with rotary positions are the operations on rotated queries and
 * keys. */
TEST(rotary_positions_rotate_queries_and_keys)
{
    enum {
        B = 2,
        N = 9,
        HEADS = 3,
        HEAD_DIM = 6,
        ROTARY_DIMS = 4,
        ROTARY_WIDTH = HEADS * HEAD_DIM
    };
    for (int softmax = 0; softmax < 2; softmax++) {
        Params *params = params_new(test_device(), 3);
        Tape *tape = tape_new(test_device());
        const AttentionKind *inner =
            softmax ? nn_causal_softmax_attention(params, (CausalSoftmaxConfig){ 0 })
                    : nn_causal_linear_attention(params, (CausalLinearConfig){ 0 });
        const AttentionKind *kind =
            nn_rotary_attention(params, (RotaryConfig){ inner, ROTARY_DIMS, .base = 50 });
        const TransformerConfig config = { .heads = HEADS,
                                           .head_dim = HEAD_DIM,
                                           .attention = kind };
        const Attention layer = nn_attention(params, "a", config);
        Tensor *x =
            tape_input(tape, test_normal(5, B * N * ROTARY_WIDTH), shape(B, N, ROTARY_WIDTH));
        Tensor *out = nn_attention_forward(tape, &layer, x, (AttentionOptions){ 0 });
        Tensor *packed = op_reshape(tape, nn_linear_forward(tape, &layer.input, x),
                                    shape(B, N, 3 * HEADS, HEAD_DIM));
        const RotaryOptions rotary = { .dims = ROTARY_DIMS, .base = 50, .halves = true };
        Tensor *q = op_rotary(tape, op_slice(tape, packed, 2, 0, HEADS), rotary);
        Tensor *k = op_rotary(tape, op_slice(tape, packed, 2, HEADS, HEADS), rotary);
        Tensor *v = op_slice(tape, packed, 2, 2 * HEADS, HEADS);
        Tensor *expected =
            softmax ? op_causal_softmax_attention(tape, q, k, v, (SoftmaxAttentionOptions){ 0 })
                    : op_causal_linear_attention(
                          tape, q, k, v, (CausalLinearAttentionOptions){ .eps = 1e-6 }, NULL);
        expected = op_reshape(tape, expected, shape(B, N, ROTARY_WIDTH));
        expected = nn_linear_forward(tape, &layer.output, expected);
        assert_near("rotary", test_values(out), test_values(expected), B * N * ROTARY_WIDTH,
                    VECTOR_TOLERANCE);
        tape_free(tape);
        params_free(params);
    }
}

TEST(misuse_of_rotary_attention_raises)
{
    Params *params = params_new(test_device(), 3);
    assert_raises("nn_rotary_attention: dims is 3, expected an even number, or 0 for head_dim",
                  nn_rotary_attention(params, (RotaryConfig){ .dims = 3 }));
    assert_raises("nn_rotary_attention: base is -1, expected more than 0, or 0 for 10000",
                  nn_rotary_attention(params, (RotaryConfig){ .base = -1 }));
#ifdef TAPEGRAD_LSH_H
    const AttentionKind *lsh = nn_lsh_attention(params, (LshConfig){ 0 });
    assert_raises("nn_rotary_attention: inner is LSH attention, expected one with queries, keys "
                  "and values",
                  nn_rotary_attention(params, (RotaryConfig){ .inner = lsh }));
#endif
    ck_assert_int_eq(params_count(params), 0);
    const AttentionKind *rotary = nn_rotary_attention(params, (RotaryConfig){ .dims = 34 });
    assert_raises("nn_rotary_attention: dims is 34, expected at most head_dim 32",
                  nn_attention(params, "a", (TransformerConfig){ .attention = rotary }));
    params_free(params);
}

int main(void)
{
    return test_main("rotary", NULL, NULL);
}
