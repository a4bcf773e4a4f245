/* CUDA against the CPU: every operation, the transformer, training; and the errors that CUDA
 * devices report when they are misused. Without DEVICE=cuda only the last part runs. */
#include "tests/operation_table.h"
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool on_cuda(void)
{
    return device_is_cuda(test_device());
}

/* ------------------------------------------------------------------------------ every operation */
enum { MOST_INPUTS = 4 };

typedef Tensor *Operation(Tape *tape, Tensor **x);

typedef struct Case {
    const char *name;
    Operation *operation;      /* NULL: a row of tests/operation_table.h, */
    const Unary *unary;        /* either this one */
    const Binary *binary;      /* or this one */
    Shape shapes[MOST_INPUTS]; /* of the inputs, up to the first of no size */
    double tolerance;          /* of float32 */
} Case;

/* clang-format off */
#define S(...) { sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t), { __VA_ARGS__ } }
/* clang-format on */

#define UNARY(name)                                                                                \
    static Tensor *apply_##name(Tape *tape, Tensor **x)                                            \
    {                                                                                              \
        return op_##name(tape, x[0]);                                                              \
    }
#define EXPRESSION(name, ...)                                                                      \
    static Tensor *apply_##name(Tape *tape, Tensor **x)                                            \
    {                                                                                              \
        return __VA_ARGS__;                                                                        \
    }

UNARY(polynomial_features)
UNARY(softmax)
UNARY(log_softmax)
EXPRESSION(mean_squared_error, op_mean_squared_error(tape, x[0], x[1]))
EXPRESSION(dropout, op_dropout(tape, x[0], (Real)0.3))
EXPRESSION(layernorm, op_layernorm(tape, x[0], x[1], x[2], (Real)1e-5))
EXPRESSION(residual_layernorm,
           op_residual_layernorm(tape, x[0], x[1], (Real)0.3, x[2], x[3], (Real)1e-5))
EXPRESSION(residual_undropped, op_residual_layernorm(tape, x[0], x[1], 0, x[2], x[2], (Real)1e-5))
EXPRESSION(sum, op_sum(tape, x[0], ALL_AXES))
EXPRESSION(sum_rows, op_sum(tape, x[0], -1))
EXPRESSION(mean, op_mean(tape, x[0], ALL_AXES))
EXPRESSION(mean_rows, op_mean(tape, x[0], -1))
EXPRESSION(sum_middle, op_sum(tape, x[0], 1))
EXPRESSION(sum_first, op_sum(tape, x[0], 0))
EXPRESSION(mean_middle, op_mean(tape, x[0], -2))
EXPRESSION(max, op_max(tape, x[0], ALL_AXES))
EXPRESSION(max_rows, op_max(tape, x[0], -1))
EXPRESSION(max_middle, op_max(tape, x[0], 1))
EXPRESSION(cumulative_sum, op_cumulative_sum(tape, x[0], 1, false))
EXPRESSION(cumulative_sum_back, op_cumulative_sum(tape, x[0], -1, true))
EXPRESSION(matmul, op_matmul(tape, x[0], x[1], false, false))
EXPRESSION(matmul_tn, op_matmul(tape, x[0], x[1], true, false))
EXPRESSION(matmul_nt, op_matmul(tape, x[0], x[1], false, true))
EXPRESSION(matmul_tt, op_matmul(tape, x[0], x[1], true, true))
EXPRESSION(linear, op_linear(tape, x[0], x[1], x[2]))
EXPRESSION(linear_alone, op_linear(tape, x[0], x[1], NULL))
EXPRESSION(linear_relu, op_linear_activation(tape, x[0], x[1], x[2], ACTIVATION_RELU))
EXPRESSION(linear_gelu, op_linear_activation(tape, x[0], x[1], x[2], ACTIVATION_GELU))
EXPRESSION(linear_gelu_tanh, op_linear_activation(tape, x[0], x[1], x[2], ACTIVATION_GELU_TANH))
EXPRESSION(reshape, op_exp(tape, op_reshape(tape, x[0], shape(5, 6))))
EXPRESSION(broadcast_to, op_broadcast_to(tape, x[0], shape(4, 7, 5, 16)))
EXPRESSION(transpose, op_transpose(tape, x[0], 1, 2))
EXPRESSION(transpose_far, op_transpose(tape, x[0], 0, 3))
EXPRESSION(concat, op_concat(tape, x, 2, -1))
EXPRESSION(concat_middle, op_concat(tape, (Tensor *[]){ x[0], x[1], x[0] }, 3, 1))
EXPRESSION(stack, op_stack(tape, (Tensor *[]){ x[0], x[1], x[0] }, 3, 1))
EXPRESSION(unfold, op_unfold(tape, x[0], (Window){ 3, 2, 2, 1 }))
EXPRESSION(unfold_all, op_unfold(tape, x[0], (Window){ .height = 2, .width = 3 }))
EXPRESSION(slice, op_slice(tape, x[0], 1, 2, 3))
EXPRESSION(causal_linear_attention,
           op_causal_linear_attention(tape, x[0], x[1], x[2], (LinearAttention){ 0 }))
EXPRESSION(packed_linear_attention,
           op_causal_linear_attention(tape, x[0], NULL, NULL, (LinearAttention){ 0 }))
EXPRESSION(linear_attention, op_linear_attention(tape, x[0], x[1], x[2], (LinearAttention){ 0 }))
EXPRESSION(softmax_attention, op_softmax_attention(tape, x[0], x[1], x[2], NULL, false))
EXPRESSION(causal_softmax_attention, op_softmax_attention(tape, x[0], x[1], x[2], NULL, true))
EXPRESSION(packed_softmax_attention, op_softmax_attention(tape, x[0], NULL, NULL, NULL, true))
/* exp multiplies the rounding error of its argument by the argument's magnitude. */
EXPRESSION(random_features, op_random_features(tape, op_scale(tape, x[0], (Real)0.25), x[1]))
/* An input used twice: the second contribution adds. */
EXPRESSION(used_twice, op_multiply(tape, op_exp(tape, x[0]), op_tanh(tape, x[0])))

static Tensor *integers(Tape *tape, Shape shape, int64_t below)
{
    int32_t values[512];
    ck_assert_int_le(shape_count(shape), 512);
    Random random = random_new(4, (uint64_t)below);
    for (int64_t i = 0; i < shape_count(shape); i++)
        values[i] = (int32_t)random_integer(&random, 0, below);
    return tape_input_i32(tape, values, shape);
}

static Tensor *apply_embedding(Tape *tape, Tensor **x)
{
    return op_embedding(tape, x[0], integers(tape, shape(9, 23), x[0]->shape.size[0]));
}

static Tensor *apply_gather(Tape *tape, Tensor **x)
{
    Shape shape = x[0]->shape;
    shape.size[shape.rank - 1] = 9;
    return op_gather(tape, x[0], integers(tape, shape, x[0]->shape.size[shape.rank - 1]));
}

static Tensor *apply_cross_entropy(Tape *tape, Tensor **x)
{
    return op_cross_entropy(tape, x[0], integers(tape, shape(37), x[0]->shape.size[1]), NULL);
}

static Tensor *apply_weighted_cross_entropy(Tape *tape, Tensor **x)
{
    Real weights[37];
    for (int i = 0; i < 37; i++)
        weights[i] = (Real)(i % 3);
    return op_cross_entropy(tape, x[0], integers(tape, shape(37), x[0]->shape.size[1]),
                            tape_input(tape, weights, shape(37)));
}

static Tensor *apply_logistic_mixture(Tape *tape, Tensor **x)
{
    const Shape pixels = shape(x[0]->shape.size[0]);
    return op_discretized_logistic_mixture(tape, x[0], integers(tape, pixels, 256));
}

/* Stored in the dtype of the tape's activations. */
static Tensor *apply_activations_of_mixtures(Tape *tape, Tensor **x)
{
    const bool bf16 = tape_precision(tape) == PRECISION_BF16;
    Tensor *half = op_scale(tape, x[0], (Real)0.5);
    half = op_cast(tape, half, bf16 ? TENSOR_BF16 : TENSOR_REAL);
    return apply_logistic_mixture(tape, &half);
}

static Tensor *apply_masked_attention(Tape *tape, Tensor **x)
{
    const int32_t lengths[2] = { 5, 70 };
    Tensor *key_lengths = tape_input_i32(tape, lengths, shape(2));
    return op_add(tape,
                  op_linear_attention(tape, x[0], x[1], x[2],
                                      (LinearAttention){ .key_lengths = key_lengths }),
                  op_softmax_attention(tape, x[0], x[1], x[2], key_lengths, false));
}

/* Values close to five directions, so that every precision puts them into the same buckets; stored
 * in the dtype of the tape's activations. */
static Tensor *near_directions(Tape *tape, Tensor *x)
{
    const int64_t count = tensor_count(x), width = x->shape.size[2] * x->shape.size[3];
    Real *values = test_normal(50, 5 * width), *all = test_normal(51, count);
    for (int64_t i = 0; i < count; i++)
        all[i] = 2 * values[i / width % 5 * width + i % width];
    x = op_add(tape, op_scale(tape, x, (Real)0.05), tape_input(tape, all, x->shape));
    tape_seed(tape, 3); /* hashes whose bucket boundaries are far from these */
    return op_cast(tape, x, tape_precision(tape) == PRECISION_BF16 ? TENSOR_BF16 : TENSOR_REAL);
}

static Tensor *apply_lsh_attention(Tape *tape, Tensor **x)
{
    return op_lsh_attention(tape, near_directions(tape, x[0]), x[1],
                            (LshAttention){ .chunk = 8, .buckets = 6, .causal = true });
}

static Tensor *apply_lsh_rounds(Tape *tape, Tensor **x)
{
    const int32_t lengths[2] = { 100, 37 };
    return op_lsh_attention(
        tape, near_directions(tape, x[0]), x[1],
        (LshAttention){
            .rounds = 3, .buckets = 4, .key_lengths = tape_input_i32(tape, lengths, shape(2)) });
}

static Tensor *apply_packed_lsh_attention(Tape *tape, Tensor **x)
{
    return op_lsh_attention(tape, near_directions(tape, x[0]), NULL,
                            (LshAttention){ .rounds = 2, .chunk = 20 });
}

/* out and the final state in one tensor; the initial state is positive, like sums of features. */
static Tensor *attend_from_state(Tape *tape, Tensor **x, LinearAttention options)
{
    Tensor *final_state;
    options.eps = (Real)0.5;
    options.state = op_exp(tape, x[3]);
    options.final_state = &final_state;
    Tensor *out = op_causal_linear_attention(tape, x[0], x[1], x[2], options);
    out = op_cast(tape, out, TENSOR_REAL);
    final_state = op_scale(tape, final_state, 1 / (Real)out->shape.size[1]);
    Tensor *parts[] = { op_reshape(tape, out, shape(tensor_count(out))),
                        op_reshape(tape, final_state, shape(tensor_count(final_state))) };
    return op_concat(tape, parts, 2, 0);
}

/* Four concatenated sequences, of which one is empty and one is a single position. */
static Tensor *attend_by_offsets(Tape *tape, Tensor **x, LinearAttention options)
{
    const int32_t N = (int32_t)x[0]->shape.size[1], offsets[5] = { 0, 0, N / 2, N / 2 + 1, N };
    options.offsets = tape_input_i32(tape, offsets, shape(5));
    return attend_from_state(tape, x, options);
}

static Tensor *attend_by_lengths(Tape *tape, Tensor **x, LinearAttention options)
{
    const int32_t lengths[2] = { 7, (int32_t)x[0]->shape.size[1] - 5 };
    options.key_lengths = tape_input_i32(tape, lengths, shape(2));
    return attend_from_state(tape, x, options);
}

/* Each form, each feature map */
EXPRESSION(recurrent, attend_from_state(tape, x, (LinearAttention){ .form = FORM_RECURRENT }))
EXPRESSION(chunked, attend_from_state(tape, x, (LinearAttention){ .form = FORM_CHUNKED }))
EXPRESSION(chunk_parallel,
           attend_from_state(tape, x, (LinearAttention){ .form = FORM_CHUNK_PARALLEL }))
EXPRESSION(quadratic, attend_from_state(tape, x, (LinearAttention){ .form = FORM_QUADRATIC }))
EXPRESSION(best_relu, attend_from_state(tape, x, (LinearAttention){ .features = FEATURES_RELU }))
EXPRESSION(best_softplus,
           attend_from_state(tape, x, (LinearAttention){ .features = FEATURES_SOFTPLUS }))
EXPRESSION(recurrent_softplus,
           attend_from_state(tape, x,
                             (LinearAttention){ .form = FORM_RECURRENT,
                                                .features = FEATURES_SOFTPLUS }))
EXPRESSION(quadratic_relu, attend_from_state(tape, x,
                                             (LinearAttention){ .form = FORM_QUADRATIC,
                                                                .features = FEATURES_RELU }))
EXPRESSION(offsets_recurrent,
           attend_by_offsets(tape, x, (LinearAttention){ .form = FORM_RECURRENT }))
EXPRESSION(offsets_chunked, attend_by_offsets(tape, x, (LinearAttention){ .form = FORM_CHUNKED }))
EXPRESSION(offsets_chunk_parallel,
           attend_by_offsets(tape, x, (LinearAttention){ .form = FORM_CHUNK_PARALLEL }))
EXPRESSION(offsets_quadratic,
           attend_by_offsets(tape, x, (LinearAttention){ .form = FORM_QUADRATIC }))
EXPRESSION(lengths_recurrent,
           attend_by_lengths(tape, x, (LinearAttention){ .form = FORM_RECURRENT }))
EXPRESSION(lengths_chunked, attend_by_lengths(tape, x, (LinearAttention){ .form = FORM_CHUNKED }))
EXPRESSION(lengths_chunk_parallel,
           attend_by_lengths(tape, x, (LinearAttention){ .form = FORM_CHUNK_PARALLEL }))
EXPRESSION(lengths_quadratic,
           attend_by_lengths(tape, x, (LinearAttention){ .form = FORM_QUADRATIC }))

/* clang-format off */
#define CASE(name, ...) { #name, apply_##name, NULL, NULL, { __VA_ARGS__ }, 1e-5 }
/* Queries, keys, values and states of H heads of D and M columns; three bf16 products */
#define ATTENTION(name, B, N, H, D, M, states) { #name, apply_##name, NULL, NULL, \
    { S(B, N, H, D), S(B, N, H, D), S(B, N, H, M), S(states, H, D, M + 1) }, 2e-5 }
/* clang-format on */
static const Case written_cases[] = {
    CASE(polynomial_features, S(3, 5, 7)),
    CASE(polynomial_features, S(37, 16)),
    CASE(polynomial_features, S(3, 1)),
    CASE(random_features, S(3, 7, 9), S(5, 9)),
    CASE(random_features, S(37, 8), S(1100, 8)),
    CASE(dropout, S(5, 7, 11)),
    CASE(used_twice, S(37, 41)),
    CASE(softmax, S(37, 41)),
    CASE(softmax, S(3, 2500)),
    CASE(log_softmax, S(37, 11)),
    CASE(log_softmax, S(3, 2500)),
    CASE(layernorm, S(3, 50, 24), S(24), S(24)),
    CASE(layernorm, S(200, 256), S(256), S(256)),
    CASE(layernorm, S(3, 1500), S(1500), S(1500)),
    CASE(layernorm, S(20, 2500), S(2500), S(2500)),
    CASE(residual_layernorm, S(3, 50, 24), S(3, 50, 24), S(24), S(24)),
    CASE(residual_layernorm, S(200, 256), S(200, 256), S(256), S(256)),
    CASE(residual_layernorm, S(37, 41), S(37, 41), S(41), S(41)),
    CASE(residual_layernorm, S(70, 300), S(70, 300), S(300), S(300)),
    CASE(residual_layernorm, S(21, 520), S(21, 520), S(520), S(520)),
    CASE(residual_layernorm, S(3, 1500), S(3, 1500), S(1500), S(1500)),
    CASE(residual_layernorm, S(20, 2500), S(20, 2500), S(2500), S(2500)),
    CASE(residual_layernorm, S(20, 2501), S(20, 2501), S(2501), S(2501)),
    CASE(residual_undropped, S(70, 33), S(70, 33), S(33)),
    CASE(sum, S(37, 41)),
    CASE(sum, S(300, 410)),
    CASE(sum_rows, S(5, 7, 111)),
    CASE(mean, S(37, 41)),
    CASE(mean_rows, S(37, 1100)),
    CASE(sum_rows, S(2, 40001)),
    CASE(sum_middle, S(5, 300, 11)),
    CASE(sum_middle, S(2, 3000, 3)),
    CASE(sum_middle, S(5, 7, 1)),
    CASE(sum_first, S(300, 7, 5)),
    CASE(sum_first, S(5)),
    CASE(mean_middle, S(3, 5, 40, 33)),
    CASE(max, S(37, 41)),
    CASE(max_rows, S(5, 7, 111)),
    CASE(max_middle, S(5, 17, 40)),
    CASE(max_middle, S(5, 70, 3)),
    CASE(cumulative_sum, S(5, 300, 11)),
    CASE(cumulative_sum_back, S(5, 7, 311)),
    CASE(mean_squared_error, S(137, 41), S(137, 41)),
    CASE(cross_entropy, S(37, 11)),
    CASE(cross_entropy, S(37, 1500)),
    CASE(weighted_cross_entropy, S(37, 11)),
    CASE(logistic_mixture, S(37, 30)),
    CASE(logistic_mixture, S(300, 3)),
    CASE(logistic_mixture, S(3, 3300)),
    CASE(activations_of_mixtures, S(37, 30)),
    CASE(embedding, S(11, 33)),
    CASE(embedding, S(300, 5)),
    CASE(gather, S(3, 7, 11)),
    CASE(gather, S(37, 3)),
    CASE(matmul, S(37, 41), S(41, 19)),
    CASE(matmul, S(3, 37, 41), S(3, 41, 19)),
    CASE(matmul_tn, S(3, 41, 37), S(41, 19)),
    CASE(matmul_nt, S(3, 37, 41), S(3, 19, 41)),
    CASE(matmul_tt, S(41, 37), S(19, 41)),
    CASE(linear, S(5, 37, 24), S(40, 24), S(40)),
    CASE(linear, S(3, 1), S(1, 1), S(1)),
    CASE(linear_alone, S(130, 24), S(7, 24)),
    CASE(linear_relu, S(2, 5, 7), S(8, 7), S(8)), /* few elements: in bf16 none changes its sign */
    CASE(linear_gelu, S(70, 24), S(1, 24), S(1)),
    CASE(linear_gelu, S(5, 37, 24), S(136, 24), S(136)),
    CASE(linear_gelu_tanh, S(5, 37, 24), S(41, 24), S(41)),
    CASE(linear_gelu_tanh, S(5, 37, 24), S(136, 24), S(136)),
    CASE(reshape, S(3, 2, 5)),
    CASE(broadcast_to, S(4, 1, 5, 1)),
    CASE(broadcast_to, S(4, 7, 1, 16)),
    CASE(broadcast_to, S(5, 1)),
    CASE(transpose, S(2, 35, 37, 3)),
    CASE(transpose_far, S(2, 5, 7, 3)),
    CASE(concat, S(5, 7, 11), S(5, 7, 6)),
    CASE(concat_middle, S(5, 7, 11), S(5, 2, 11)),
    CASE(stack, S(5, 7, 12), S(5, 7, 12)),
    CASE(unfold, S(2, 7, 9, 3)),
    CASE(unfold, S(3, 6, 4, 16)),
    CASE(unfold_all, S(1, 5, 6, 8)),
    CASE(slice, S(5, 7, 11)),
    CASE(causal_linear_attention, S(2, 5, 3, 8), S(2, 5, 3, 8), S(2, 5, 3, 8)),
    CASE(causal_linear_attention, S(1, 300, 2, 32), S(1, 300, 2, 32), S(1, 300, 2, 32)),
    CASE(causal_linear_attention, S(1, 130, 1, 40), S(1, 130, 1, 40), S(1, 130, 1, 72)),
    CASE(causal_linear_attention, S(1, 70, 1, 128), S(1, 70, 1, 128), S(1, 70, 1, 128)),
    CASE(packed_linear_attention, S(2, 129, 6, 16)),
    ATTENTION(recurrent, 2, 9, 3, 20, 40, 2),
    ATTENTION(chunked, 1, 150, 2, 32, 32, 1),
    ATTENTION(chunked, 1, 140, 1, 64, 64, 1),
    ATTENTION(chunked, 1, 150, 1, 128, 128, 1),
    ATTENTION(chunked, 1, 140, 2, 37, 61, 1), /* rows of any alignment */
    ATTENTION(chunked, 1, 140, 2, 6, 18, 1),
    ATTENTION(chunked, 1, 70, 1, 130, 20, 1),
    ATTENTION(chunk_parallel, 2, 200, 2, 20, 30, 2),
    ATTENTION(chunk_parallel, 1, 200, 1, 64, 33, 1),
    ATTENTION(chunk_parallel, 1, 200, 1, 100, 128, 1),
    ATTENTION(chunk_parallel, 1, 260, 22, 8, 8, 1), /* segments of several chunks */
    ATTENTION(quadratic, 2, 150, 2, 20, 40, 2),
    ATTENTION(best_relu, 2, 80, 2, 24, 32, 2),
    ATTENTION(best_softplus, 2, 80, 1, 50, 64, 2),
    ATTENTION(recurrent_softplus, 1, 1, 2, 32, 32, 1),
    ATTENTION(quadratic_relu, 1, 70, 2, 8, 8, 1),
    ATTENTION(offsets_recurrent, 1, 40, 2, 16, 16, 4),
    ATTENTION(offsets_chunked, 1, 170, 2, 32, 24, 4),
    ATTENTION(offsets_chunk_parallel, 1, 300, 2, 24, 64, 4),
    ATTENTION(offsets_chunk_parallel, 1, 150, 1, 150, 8, 4),
    ATTENTION(offsets_quadratic, 1, 170, 2, 16, 16, 4),
    ATTENTION(lengths_recurrent, 2, 40, 2, 16, 16, 2),
    ATTENTION(lengths_chunked, 2, 130, 2, 32, 24, 2),
    ATTENTION(lengths_chunked, 2, 150, 1, 67, 128, 2),
    ATTENTION(lengths_chunk_parallel, 2, 150, 1, 64, 64, 2),
    ATTENTION(lengths_quadratic, 2, 150, 2, 16, 16, 2),
    CASE(linear_attention, S(2, 33, 2, 8), S(2, 70, 2, 8), S(2, 70, 2, 24)),
    CASE(masked_attention, S(2, 33, 2, 16), S(2, 70, 2, 16), S(2, 70, 2, 16)),
    CASE(softmax_attention, S(2, 33, 2, 8), S(2, 70, 2, 8), S(2, 70, 2, 24)),
    CASE(causal_softmax_attention, S(1, 130, 2, 32), S(1, 130, 2, 32), S(1, 130, 2, 32)),
    CASE(packed_softmax_attention, S(2, 65, 6, 64)),
    CASE(lsh_attention, S(2, 33, 2, 8), S(2, 33, 2, 24)),
    CASE(lsh_attention, S(1, 300, 1, 40), S(1, 300, 1, 72)),
    CASE(lsh_rounds, S(2, 100, 2, 8), S(2, 100, 2, 5)),
    CASE(packed_lsh_attention, S(1, 150, 4, 32)),
    CASE(packed_lsh_attention, S(1, 1, 2, 3)),
};

/* The shapes for every unary and binary operation */
static const Shape unary_shapes[] = { S(37, 41), S(1), S(3, 5, 7), S(3, 1000) };
static const Shape binary_shapes[][2] = {
    { S(5, 7, 11), S(5, 7, 11) }, { S(5, 7, 11), S(11) },        { S(11), S(5, 7, 11) },
    { S(5, 7, 11), S(7, 11) },    { S(300, 7), S(7) },           { S(70, 11), S(5, 70, 11) },
    { S(7, 300), S(5, 7, 300) },  { S(300, 7), S(300, 1) },      { S(5, 7, 16), S(5, 1, 16) },
    { S(5, 7, 1), S(5, 1, 16) },  { S(2, 1, 4, 1), S(3, 1, 5) },
};
enum {
    UNARY_SHAPES = sizeof unary_shapes / sizeof *unary_shapes,
    BINARY_SHAPES = sizeof binary_shapes / sizeof *binary_shapes,
    UNARY_CASES = UNARIES * UNARY_SHAPES,
    BINARY_CASES = BINARIES * BINARY_SHAPES,
    CASES = UNARY_CASES + BINARY_CASES + sizeof written_cases / sizeof *written_cases
};

static Case case_at(int i)
{
    if (i < UNARY_CASES) {
        const Unary *unary = &unaries[i / UNARY_SHAPES];
        return (Case){ .name = unary->name,
                       .unary = unary,
                       .shapes = { unary_shapes[i % UNARY_SHAPES] },
                       .tolerance = 1e-5 };
    }
    i -= UNARY_CASES;
    if (i < BINARY_CASES) {
        const Binary *binary = &binaries[i / BINARY_SHAPES];
        const Shape *const shapes = binary_shapes[i % BINARY_SHAPES];
        return (Case){ .name = binary->name,
                       .binary = binary,
                       .shapes = { shapes[0], shapes[1] },
                       .tolerance = 1e-5 };
    }
    return written_cases[i - BINARY_CASES];
}

/* Operations that accept only positive inputs get exponentials. */
static Tensor *apply_case(const Case *c, Tape *tape, Tensor **x)
{
    if (c->unary)
        return c->unary->operation(tape, c->unary->domain == POSITIVE ? op_exp(tape, x[0]) : x[0]);
    if (c->binary)
        return c->binary->operation(tape, x[0],
                                    c->binary->domain == POSITIVE ? op_exp(tape, x[1]) : x[1]);
    return c->operation(tape, x);
}

static int input_count(const Case *c)
{
    int count = 0;
    while (count < MOST_INPUTS && c->shapes[count].rank > 0)
        count++;
    return count;
}

/* An operation's result and its inputs' gradients, on the host. */
typedef struct Outcome {
    int count;
    int64_t counts[1 + MOST_INPUTS];
    Real *values[1 + MOST_INPUTS];
} Outcome;

static void note(Outcome *outcome, const Tensor *tensor)
{
    outcome->counts[outcome->count] = tensor_count(tensor);
    outcome->values[outcome->count++] = test_values(tensor);
}

/* The gradients are those of sum_i r_i out_i with random r. */
static Outcome run_case(const Case *c, Device *device, Precision precision)
{
    Tape *tape = tape_new(device);
    tape_set_precision(tape, precision);
    tape_seed(tape, 9);
    Tensor *x[MOST_INPUTS] = { NULL };
    for (int i = 0; i < input_count(c); i++)
        x[i] =
            tape_variable(tape, test_normal((uint64_t)i, shape_count(c->shapes[i])), c->shapes[i]);
    Tensor *out = tensor_keep(op_cast(tape, apply_case(c, tape, x), TENSOR_REAL));
    Tensor *r = tape_input(tape, test_normal(77, tensor_count(out)), out->shape);
    tape_backward(tape, op_sum(tape, op_multiply(tape, out, r), ALL_AXES));
    Outcome outcome = { 0 };
    note(&outcome, out);
    for (int i = 0; i < input_count(c); i++)
        note(&outcome, tensor_gradient(x[i]));
    tape_free(tape);
    return outcome;
}

static void compare(const char *name, Outcome expected, Outcome actual, double tolerance)
{
    double largest = 0; /* largest gradient: one that cancels has no digits of its own */
    for (int i = 1; i < expected.count; i++)
        for (int64_t j = 0; j < expected.counts[i]; j++)
            largest = fmax(largest, fabs((double)expected.values[i][j]));
    for (int i = 0; i < expected.count; i++) {
        double scale = 0, error = 0;
        for (int64_t j = 0; j < expected.counts[i]; j++) {
            double difference = fabs((double)expected.values[i][j] - (double)actual.values[i][j]);
            error = error >= difference ? error : difference; /* keeps NaN */
            scale = fmax(scale, fabs((double)expected.values[i][j]));
        }
        scale = i > 0 ? largest : scale;
        ck_assert_msg(error <= tolerance * scale,
                      "%s, %s %d: the CPU and CUDA differ by %g of %g, expected at most %g", name,
                      i ? "gradient" : "result", i, error, scale, tolerance * scale);
    }
}

/* tolerance 0: the case's own */
static void compare_all(Precision precision, double tolerance)
{
    Device *cpu = device_open("cpu");
    for (int i = 0; i < CASES; i++) {
        const Case c = case_at(i);
        compare(c.name, run_case(&c, cpu, PRECISION_FLOAT32),
                run_case(&c, test_device(), precision), tolerance > 0 ? tolerance : c.tolerance);
    }
}

START_TEST(every_operation_as_on_the_cpu)
{
    if (on_cuda())
        compare_all(PRECISION_FLOAT32, sizeof(Real) == sizeof(float) ? 0 : 1e-12);
}
END_TEST

#ifndef TAPEGRAD_DOUBLE
START_TEST(every_operation_in_tf32)
{
    if (on_cuda())
        compare_all(PRECISION_TF32, 2e-3);
}
END_TEST

START_TEST(every_operation_in_bf16)
{
    if (on_cuda())
        compare_all(PRECISION_BF16, 4e-2);
}
END_TEST
#endif

START_TEST(every_operation_repeats_bit_for_bit)
{
    for (int i = 0; i < CASES && on_cuda(); i++) {
        const Case c = case_at(i);
        Outcome first = run_case(&c, test_device(), PRECISION_FLOAT32);
        Outcome second = run_case(&c, test_device(), PRECISION_FLOAT32);
        for (int j = 0; j < first.count; j++)
            ck_assert_msg(memcmp(first.values[j], second.values[j],
                                 (size_t)first.counts[j] * sizeof(Real)) == 0,
                          "%s: two runs differ", c.name);
    }
}
END_TEST

/* ------------------------------------------------------------------------------------- training */
enum { SYMBOLS = 11, LENGTH = 21, BATCH = 3, STEPS = 10, WEIGHTS = 64 };

typedef struct Training {
    double losses[STEPS];
    int count;
    int64_t counts[WEIGHTS];
    Real *gradients[WEIGHTS]; /* of the first step */
    Real *values[WEIGHTS];    /* after the last */
} Training;

static Training train(Device *device, Precision precision, bool gelu)
{
    Params *params = params_new(device, 1);
    Embedding embedding = nn_embedding(params, "embedding", SYMBOLS, 48);
    Transformer transformer = nn_transformer(params, "transformer",
                                             (TransformerConfig){ .layers = 2,
                                                                  .heads = 3,
                                                                  .head_dim = 16,
                                                                  .feed_forward = 70,
                                                                  .gelu = gelu,
                                                                  .dropout = (Real)0.1 });
    Linear head = nn_linear(params, "head", 48, SYMBOLS);
    Optimizer *optimizer = optim_radam(params, (RAdamConfig){ .learning_rate = (Real)1e-3 });
    Tape *tape = tape_new(device);
    tape_set_precision(tape, precision);
    Training training = { .count = params_count(params) };
    ck_assert_int_le(training.count, WEIGHTS);
    for (int step = 0; step < STEPS; step++) {
        Tensor *tokens = integers(tape, shape(BATCH, LENGTH), SYMBOLS);
        Tensor *x = nn_embedding_forward(tape, &embedding, tokens);
        x = nn_transformer_forward(tape, &transformer, x, NULL);
        Tensor *loss = op_cross_entropy(tape, nn_linear_forward(tape, &head, x), tokens, NULL);
        tape_backward(tape, loss);
        training.losses[step] = (double)tensor_item(loss);
        for (int i = 0; i < training.count && step == 0; i++) {
            training.counts[i] = tensor_count(params_at(params, i));
            training.gradients[i] = test_values(tensor_gradient(params_at(params, i)));
        }
        params_clip_gradients(params, 1);
        optim_step(optimizer);
        tape_reset(tape);
    }
    for (int i = 0; i < training.count; i++)
        training.values[i] = test_values(params_at(params, i));
    tape_free(tape);
    optim_free(optimizer);
    params_free(params);
    return training;
}

static void compare_training(Precision precision, double loss_tolerance, double tolerance)
{
    for (int gelu = 0; gelu < 2 && on_cuda(); gelu++) {
        Training expected = train(device_open("cpu"), PRECISION_FLOAT32, gelu);
        Training actual = train(test_device(), precision, gelu);
        for (int step = 0; step < STEPS; step++) {
            double error = fabs(actual.losses[step] - expected.losses[step]);
            ck_assert_msg(error <= loss_tolerance * expected.losses[step],
                          "step %d: the losses are %g and %g", step, expected.losses[step],
                          actual.losses[step]);
        }
        double largest = 0, error = 0;
        for (int i = 0; i < expected.count; i++)
            for (int64_t j = 0; j < expected.counts[i]; j++) {
                double a = (double)expected.gradients[i][j];
                double difference = fabs(a - (double)actual.gradients[i][j]);
                largest = fmax(largest, fabs(a));
                error = error >= difference ? error : difference;
            }
        ck_assert_msg(error <= tolerance * largest, "gradients differ by %g of %g", error, largest);
    }
}

START_TEST(training_as_on_the_cpu)
{
    compare_training(PRECISION_FLOAT32, 1e-4, 1e-5);
}
END_TEST

#ifndef TAPEGRAD_DOUBLE
START_TEST(training_in_tf32)
{
    compare_training(PRECISION_TF32, 2e-3, 5e-3);
}
END_TEST

START_TEST(training_in_bf16)
{
    compare_training(PRECISION_BF16, 2e-2, 5e-2);
}
END_TEST
#endif

/* ------------------------------------------------------------------------------------- devices */
START_TEST(two_devices_at_once)
{
    if (!on_cuda())
        return;
    test_expect_error();
    if (setjmp(test_error_jump))
        return; /* this machine has only one */
    Device *second = device_open("cuda:1");
    tapegrad_on_error(NULL, NULL);
    ck_assert_str_eq(device_name(second), "cuda:1");
    Outcome a[CASES], b[CASES];
    for (int i = 0; i < CASES; i++) {
        const Case c = case_at(i);
        a[i] = run_case(&c, test_device(), PRECISION_FLOAT32);
        b[i] = run_case(&c, second, PRECISION_FLOAT32);
        compare(c.name, a[i], b[i], 0);
    }
    Tape *one = tape_new(test_device()), *two = tape_new(second);
    const Real number = 1;
    Tensor *x = tape_input(one, &number, shape(1));
    assert_raises("op_exp: x is on cuda:0, the tape on cuda:1", op_exp(two, x));
    tape_free(one);
    tape_free(two);
}
END_TEST

START_TEST(exhausted_memory_is_told)
{
    if (!on_cuda())
        return;
    Tape *tape = tape_new(test_device());
    test_expect_error();
    if (!setjmp(test_error_jump)) {
        tape_persistent(tape, shape(1 << 20, 1 << 16));
        ck_abort_msg("no error");
    }
    tapegrad_on_error(NULL, NULL);
    const char *sentence = tapegrad_error();
    const char *start = sizeof(Real) == sizeof(float)
                            ? "tape_persistent: memory is exhausted: 274877906944 bytes wanted, "
                              "0 in use on cuda:0, 0 cached, "
                            : "tape_persistent: memory is exhausted: 549755813888 bytes wanted, "
                              "0 in use on cuda:0, 0 cached, ";
    ck_assert_msg(strncmp(sentence, start, strlen(start)) == 0, "%s", sentence);
    ck_assert_msg(strstr(sentence, " free") != NULL, "%s", sentence);
    tape_free(tape);
}
END_TEST

START_TEST(devices_that_are_not_there)
{
    test_expect_error();
    if (!setjmp(test_error_jump)) {
        device_open("cuda:99");
        ck_abort_msg("no error");
    }
    tapegrad_on_error(NULL, NULL);
    const char *sentence = tapegrad_error();
#ifndef TAPEGRAD_CUDA
    const char *start = "device_open: there is no device \"cuda:99\"; this library was built "
                        "without CUDA";
#else
    const char *start = device_is_cuda(device_best())
                            ? "device_open: there is no device \"cuda:99\"; this machine has "
                            : "device_open: \"cuda:99\": no GPU was found: ";
#endif
    ck_assert_msg(strncmp(sentence, start, strlen(start)) == 0, "%s", sentence);
}
END_TEST

int main(void)
{
    return run_tests(
        "cuda", (const TTest *const[]){ every_operation_as_on_the_cpu,
#ifndef TAPEGRAD_DOUBLE
                                        every_operation_in_tf32, every_operation_in_bf16,
                                        training_in_tf32, training_in_bf16,
#endif
                                        every_operation_repeats_bit_for_bit, training_as_on_the_cpu,
                                        two_devices_at_once, exhausted_memory_is_told,
                                        devices_that_are_not_there, NULL });
}
