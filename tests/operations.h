/* Every operation that is not elementwise, one row each; tests/operation_table.h has the
 * elementwise ones, which the tests here append. From a row test_operations checks gradients by
 * finite differences, NaN, misuse, exhausted memory and repeatability, compares CUDA with the CPU
 * in every precision, and bench/operations measures. A case with few elements serves finite
 * differences; every row has one.
 *
 *     ROW(name, expression of tape and x[0], x[1], ..., cost, cases: inputs each)
 *
 * A measured row's first case is the benchmark's, which the tests skip; its axes of ROWS and
 * SEQUENCES are longer on CUDA. */
#ifndef TAPEGRAD_TESTS_OPERATIONS_H
#define TAPEGRAD_TESTS_OPERATIONS_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/operation_table.h"

enum { MAX_INPUTS = 6, ROWS = 8192, WIDTH = 256, WIDE = 1024 };
/* Of attention in the benchmark: SEQUENCES POSITIONS HEADS HEAD_DIM = ROWS WIDTH elements. */
enum { SEQUENCES = 64, POSITIONS = 128, HEADS = 8, HEAD_DIM = 32 };

/* An input: normal random values that require a gradient, int32 in [0, below), or the constant
 * weights 0, 1, 2, 0, ... Tests of bf16 store normal values in bf16, except a parameter's. */
typedef struct Input {
    Shape shape; /* rank 0: no input */
    int32_t below;
    bool weights, parameter;
} Input;

/* The cost per element of ROWS WIDTH, of the forward pass and of forward and backward: flops, or
 * passes, the number of times that an element is read from or written to memory. 0: the benchmark
 * leaves the operation out. */
typedef struct Cost {
    double flops, all_flops, passes, all_passes;
} Cost;

typedef struct Operation {
    const char *name;
    Tensor *(*apply)(Tape *tape, Tensor **x);
    Cost cost;
    int count;
    const Input (*cases)[MAX_INPUTS];
} Operation;

/* ------------------------------------------------------------------------------------- helpers */

/* Elements of a window that are at least 0.1 apart: finite differences keep its maximum. */
static inline Tensor *far_apart(Tape *tape, Tensor *x)
{
    const int64_t count = tensor_count(x), *size = x->shape.size;
    static Real *values; /* static: an error may leave this function by longjmp */
    free(values);
    values = malloc((size_t)count * sizeof *values);
    if (!values)
        abort();
    for (int64_t i = 0; i < count; i++) {
        const int64_t c = i % size[3], w = i / size[3] % size[2], h = i / size[3] / size[2];
        values[i] = (Real)((3 * h + 5 * w + 7 * c) % 16) / 2;
    }
    return op_add(tape, op_scale(tape, x, 0.05), tape_input(tape, values, x->shape));
}

/* out and the final state in one tensor; the initial state is positive, like sums of features. */
static inline Tensor *attend_from_state(Tape *tape, Tensor **x,
                                        CausalLinearAttentionOptions options)
{
    Tensor *final_state;
    options.eps = 0.5;
    options.state = op_exp(tape, x[3]);
    Tensor *out = op_causal_linear_attention(tape, x[0], x[1], x[2], options, &final_state);
    out = op_cast(tape, out, TENSOR_REAL);
    final_state = op_scale(tape, final_state, 1.0 / (double)out->shape.size[1]);
    Tensor *parts[] = { op_reshape(tape, out, shape(tensor_count(out))),
                        op_reshape(tape, final_state, shape(tensor_count(final_state))) };
    return op_concat(tape, parts, 2, 0);
}

/* Four concatenated sequences, of which one is empty and one is a single position. */
static inline Tensor *four_sequences(Tape *tape, Tensor **x)
{
    const int32_t N = (int32_t)x[0]->shape.size[1], offsets[5] = { 0, 0, N / 2, N / 2 + 1, N };
    return tape_input_i32(tape, offsets, shape(5));
}

static inline Tensor *attend_by_offsets(Tape *tape, Tensor **x, AttentionForm form)
{
    return attend_from_state(
        tape, x,
        (CausalLinearAttentionOptions){ .form = form, .offsets = four_sequences(tape, x) });
}

/* Different lengths in [1, N] */
static inline Tensor *lengths_of(Tape *tape, Tensor *x)
{
    const int32_t N = (int32_t)x->shape.size[1], B = (int32_t)x->shape.size[0];
    int32_t lengths[64];
    for (int32_t b = 0; b < B; b++)
        lengths[b] = b % 2 ? N - b * N / (10 * B) : (N + 7) / 8 + b * N / (2 * B);
    return tape_input_i32(tape, lengths, shape(B));
}

static inline Tensor *attend_by_lengths(Tape *tape, Tensor **x, AttentionForm form)
{
    return attend_from_state(
        tape, x,
        (CausalLinearAttentionOptions){ .form = form, .key_lengths = lengths_of(tape, x[1]) });
}

static inline Tensor *attend_in_form(Tape *tape, Tensor **x, AttentionForm form,
                                     FeatureMap features)
{
    Tensor *smooth[MAX_INPUTS];
    memcpy(smooth, x, sizeof smooth);
    for (int i = 0; i < 2 && features == FEATURE_MAP_RELU; i++) /* relu(x^3) has no kink */
        smooth[i] = op_multiply(tape, x[i], op_multiply(tape, x[i], x[i]));
    return attend_from_state(tape, smooth,
                             (CausalLinearAttentionOptions){ .form = form, .features = features });
}

/* Log decays -softplus(x), to which every seventh position adds -300 and every fifth -30 */
static inline Tensor *strong_decay(Tape *tape, Tensor *x)
{
    const int64_t count = tensor_count(x), H = x->shape.size[2];
    static Real *values; /* as in far_apart */
    free(values);
    values = malloc((size_t)count * sizeof *values);
    if (!values)
        abort();
    for (int64_t i = 0; i < count; i++)
        values[i] = i / H % 7 == 6 ? -300 : i / H % 5 == 4 ? -30 : 0;
    return op_subtract(tape, tape_input(tape, values, x->shape), op_softplus(tape, x));
}

/* With the log decay -scale softplus(x[4]), or 0: a strong one; unnormalized: without feature map
 * too. */
static inline Tensor *attend_with_decay(Tape *tape, Tensor **x, double scale,
                                        CausalLinearAttentionOptions options)
{
    options.log_decay = strong_decay(tape, x[4]);
    if (scale > 0)
        options.log_decay = op_scale(tape, op_softplus(tape, x[4]), -scale);
    if (options.unnormalized)
        options.features = FEATURE_MAP_IDENTITY;
    return attend_from_state(tape, x, options);
}

/* With the log decay -softplus(x[3]), whose sums divide a chunk on the CPU; its first part begins
 * without a state, the others do not. */
static inline Tensor *attend_from_no_state(Tape *tape, Tensor **x)
{
    const CausalLinearAttentionOptions options = {
        .eps = 1e-6,
        .form = FORM_CHUNKED,
        .chunk = 100,
        .log_decay = op_scale(tape, op_softplus(tape, x[3]), -1),
    };
    return op_causal_linear_attention(tape, x[0], x[1], x[2], options, NULL);
}

static inline Tensor *state_with_decay(Tape *tape, Tensor **x, CausalLinearAttentionOptions options)
{
    options.log_decay = op_scale(tape, op_softplus(tape, x[2]), -0.1);
    if (options.unnormalized)
        options.features = FEATURE_MAP_IDENTITY;
    return op_causal_linear_state(tape, x[0], x[1], options);
}

static inline Tensor *masked_attention(Tape *tape, Tensor **x)
{
    Tensor *key_lengths = lengths_of(tape, x[1]);
    return op_add(
        tape,
        op_linear_attention(tape, x[0], x[1], x[2],
                            (LinearAttentionOptions){ .eps = 1e-6, .key_lengths = key_lengths }),
        op_softmax_attention(tape, x[0], x[1], x[2],
                             (SoftmaxAttentionOptions){ .key_lengths = key_lengths }));
}

/* An additive mask [B or 1, H or 1, N, keys] for query and key, or for a packed query: values from
 * -2 to 2, -infinity for a fifth of the keys and for all keys of one query. */
static inline SoftmaxAttentionOptions additive_mask(Tape *tape, Tensor *query, Tensor *key,
                                                    bool of_sequences, bool of_heads)
{
    const int64_t *size = query->shape.size, N = size[1], keys = key ? key->shape.size[1] : N;
    const int64_t B = of_sequences ? size[0] : 1, H = of_heads ? size[2] / (key ? 1 : 3) : 1;
    static Real *values; /* static: an error may leave this function by longjmp */
    free(values);
    values = malloc((size_t)(B * H * N * keys) * sizeof *values);
    if (!values)
        abort();
    for (int64_t i = 0; i < B * H * N * keys; i++)
        values[i] =
            i * 31 % 50 < 10 || i / keys == N / 2 ? -(Real)INFINITY : (Real)(i * 7 % 9 - 4) / 2;
    const Shape shape_of_all = B * H == 1 ? shape(N, keys) : shape(B, H, N, keys);
    return (SoftmaxAttentionOptions){ .mask = tape_input(tape, values, shape_of_all) };
}

/* Adds the log decay -scale softplus(x). */
static inline SoftmaxAttentionOptions decaying(Tape *tape, Tensor *x, double scale,
                                               SoftmaxAttentionOptions options)
{
    options.log_decay = op_scale(tape, op_softplus(tape, x), -scale);
    return options;
}

/* A third of the positions as window, a sink and a prefix of a few positions; documents: of
 * four_sequences. */
static inline SoftmaxAttentionOptions limited(Tape *tape, Tensor **x, bool window, int64_t sinks,
                                              int64_t prefix, bool documents)
{
    return (SoftmaxAttentionOptions){ .window = window ? 1 + x[0]->shape.size[1] / 3 : 0,
                                      .sinks = sinks,
                                      .prefix = prefix,
                                      .offsets = documents ? four_sequences(tape, x) : NULL };
}

static inline SoftmaxAttentionOptions with_sink_logits(Tensor *sink_logits,
                                                       SoftmaxAttentionOptions options)
{
    options.sink_logits = sink_logits;
    return options;
}

/* x[3]: rows of H columns: G of b_ih, G of b_hh, and unless it ends there, B of the initial h and,
 * for an LSTM, of c. */
static inline Tensor *rows_of(Tape *tape, Tensor *x, int64_t first, int64_t rows, bool flat)
{
    Tensor *part = op_slice(tape, x, 0, first, rows);
    return flat ? op_reshape(tape, part, shape(tensor_count(part))) : part;
}

/* A weight of variance 1 / (4 in): larger ones make the state chaotic, and rounding errors grow. */
static inline Tensor *stable(Tape *tape, Tensor *weight)
{
    return op_scale(tape, weight, 0.5 / sqrt((double)weight->shape.size[1]));
}

/* out and the final state in one tensor */
static inline Tensor *with_final(Tape *tape, Tensor **parts, int count)
{
    parts[0] = op_cast(tape, parts[0], TENSOR_REAL);
    for (int i = 0; i < count; i++)
        parts[i] = op_reshape(tape, parts[i], shape(tensor_count(parts[i])));
    return op_concat(tape, parts, count, 0);
}

/* -------------------------------------------------------------------------------------- rows */
/* clang-format off */
#define SHAPE(...) { sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t), { __VA_ARGS__ } }
#define S(...) { .shape = SHAPE(__VA_ARGS__) }
#define P(...) { .shape = SHAPE(__VA_ARGS__), .parameter = true } /* or a state: Real always */
#define INTEGERS(n, ...) { .shape = SHAPE(__VA_ARGS__), .below = n }
#define WEIGHTS(...) { .shape = SHAPE(__VA_ARGS__), .weights = true }
#define FLOPS(forward, both) { .flops = forward, .all_flops = both }
#define PASSES(forward, both) { .passes = forward, .all_passes = both }
#define NO_OPTIONS (SoftmaxAttentionOptions){ 0 }
#define USUAL_EPS (CausalLinearAttentionOptions){ .eps = 1e-6 } /* the authors' */
#define UNMEASURED { .flops = 0 }
/* Queries, keys, values of H heads of D and M columns; with the states */
#define QKV(B, N, H, D, M) S(B, N, H, D), S(B, N, H, D), S(B, N, H, M)
#define QKVS(B, N, H, D, M, states) QKV(B, N, H, D, M), P(states, H, D, M + 1)
#define DECAYS(B, N, H, D, M, states, last)                                                        \
    QKV(B, N, H, D, M), P(states, H, D, M + last), P(B, N, H)
#define DECAY(scale, ...)                                                                          \
    attend_with_decay(tape, x, scale, (CausalLinearAttentionOptions){ __VA_ARGS__ })
#define MEASURED_QKV QKV(SEQUENCES, POSITIONS, HEADS, HEAD_DIM, HEAD_DIM)

#include "tests/extensions.h"

#define OPERATIONS(ROW)                                                                            \
    ROW(matmul, op_matmul(tape, x[0], x[1]), FLOPS(2.0 * WIDE, 6.0 * WIDE),                        \
        { S(ROWS, WIDTH), S(WIDTH, WIDE) }, { S(3, 5), S(5, 7) }, { S(2, 3, 5), S(2, 5, 4) },      \
        { S(37, 41), S(41, 19) }, { S(3, 37, 41), S(3, 41, 19) }, { S(1, 40), S(40, 130) },        \
        { S(65, 127), S(127, 130) }, { S(2, 3, 9, 13), S(13, 7) }, { S(1, 1), S(1, 1) })           \
    ROW(matmul_tn, op_matmul_tn(tape, x[0], x[1]), UNMEASURED,                                     \
        { S(2, 5, 3), S(5, 4) }, { S(3, 41, 37), S(41, 19) }, { S(19, 130), S(19, 1) },            \
        { S(300, 11), S(300, 70) }, { S(2, 3, 13, 9), S(2, 3, 13, 7) })                            \
    ROW(matmul_nt, op_matmul_nt(tape, x[0], x[1]), UNMEASURED,                                     \
        { S(2, 3, 5), S(2, 4, 5) }, { S(3, 37, 41), S(3, 19, 41) }, { S(64, 64), S(64, 64) },      \
        { S(65, 127), S(130, 127) }, { S(2, 3, 9, 13), S(7, 13) },                                 \
        { S(18, 4100), S(18, 4100) }) /* two rows are left for a thread */                         \
    ROW(linear, op_linear(tape, x[0], x[1], x[2]), FLOPS(2.0 * WIDE, 6.0 * WIDE),                  \
        { S(ROWS, WIDTH), P(WIDE, WIDTH), P(WIDE) }, { S(3, 1), P(1, 1), P(1) },                   \
        { S(2, 3, 5), P(7, 5), P(7) }, { S(5, 37, 24), P(40, 24), P(40) })                         \
    ROW(linear_alone, op_linear(tape, x[0], x[1], NULL), UNMEASURED,                               \
        { S(3, 5), P(7, 5) }, { S(130, 24), P(7, 24) })                                            \
    ROW(linear_relu, op_linear_activation(tape, x[0], x[1], x[2], ACTIVATION_RELU), UNMEASURED,    \
        { S(2, 5, 7), P(8, 7), P(8) }) /* few elements: in bf16 none changes its sign */           \
    ROW(linear_gelu, op_linear_activation(tape, x[0], x[1], x[2], ACTIVATION_GELU), UNMEASURED,    \
        { S(3, 5), P(7, 5), P(7) }, { S(70, 24), P(1, 24), P(1) },                                 \
        { S(5, 37, 24), P(136, 24), P(136) })                                                      \
    ROW(linear_gelu_tanh, op_linear_activation(tape, x[0], x[1], x[2], ACTIVATION_GELU_TANH),      \
        UNMEASURED, { S(3, 5), P(7, 5), P(7) }, { S(5, 37, 24), P(41, 24), P(41) },                \
        { S(5, 37, 24), P(136, 24), P(136) }, { S(2100, 3), P(67, 3), P(67) })                     \
    ROW(linear_silu, op_linear_activation(tape, x[0], x[1], x[2], ACTIVATION_SILU), UNMEASURED,    \
        { S(3, 5), P(7, 5), P(7) }, { S(5, 37, 24), P(136, 24), P(136) })                          \
    ROW(add_row, op_add(tape, x[0], x[1]), PASSES(2, 5), { S(ROWS, WIDTH), S(WIDTH) },             \
        { S(3, 5), S(5) })                                                                         \
    ROW(where, op_where(tape, x[2], x[0], x[1]), PASSES(4, 10),                                    \
        { S(ROWS, WIDTH), S(ROWS, WIDTH), S(ROWS, WIDTH) }, { S(5), S(5), WEIGHTS(5) },            \
        { S(3, 7), S(7), WEIGHTS(3, 1) }, { S(2, 3, 1), S(2, 1, 5), WEIGHTS(5) },                  \
        { S(4, 1, 3), S(1, 1), WEIGHTS(2, 4, 5, 1) }, { S(1), S(1), WEIGHTS(9, 5) },               \
        { S(37, 1100), S(37, 1100), WEIGHTS(37, 1100) }, { S(1100), S(37, 1), WEIGHTS(37, 1100) }) \
    ROW(dropout, op_dropout(tape, x[0], 0.3), PASSES(2, 4), { S(ROWS, WIDTH) }, { S(131) },        \
        { S(5, 7, 11) })                                                                           \
    ROW(used_twice, op_multiply(tape, op_exp(tape, x[0]), op_tanh(tape, x[0])), UNMEASURED,        \
        { S(3, 7) }, { S(37, 41) })                                                                \
    ROW(softmax, op_softmax(tape, x[0]), PASSES(2, 5), { S(ROWS, WIDTH) }, { S(5) },               \
        { S(2, 3, 2, 19) }, { S(37, 41) }, { S(7, 2500) })                                         \
    ROW(log_softmax, op_log_softmax(tape, x[0]), PASSES(2, 5), { S(ROWS, WIDTH) }, { S(1) },       \
        { S(3, 21) }, { S(37, 11) }, { S(3, 2500) })                                               \
    ROW(layernorm, op_layernorm(tape, x[0], x[1], x[2], 1e-3), PASSES(2, 5),                       \
        { S(ROWS, WIDTH), P(WIDTH), P(WIDTH) }, { S(5), P(5), P(5) }, { S(3, 19), P(19), P(19) },  \
        { S(70, 3), P(3), P(3) }, { S(2, 1, 3, 17), P(17), P(17) },                                \
        { S(3, 50, 24), P(24), P(24) },                                                            \
        { S(200, 256), P(256), P(256) }, { S(3, 1500), P(1500), P(1500) },                         \
        { S(20, 2500), P(2500), P(2500) })                                                         \
    ROW(residual_layernorm,                                                                        \
        op_residual_layernorm(tape, x[0], x[1], 0.3, x[2], x[3], 1e-3), PASSES(3, 8),              \
        { S(ROWS, WIDTH), S(ROWS, WIDTH), P(WIDTH), P(WIDTH) }, { S(5), S(5), P(5), P(5) },        \
        { S(3, 19), S(3, 19), P(19), P(19) }, { S(70, 3), S(70, 3), P(3), P(3) },                  \
        { S(2, 1, 3, 16), S(2, 1, 3, 16), P(16), P(16) },                                          \
        { S(3, 50, 24), S(3, 50, 24), P(24), P(24) },                                              \
        { S(200, 256), S(200, 256), P(256), P(256) }, { S(37, 41), S(37, 41), P(41), P(41) },      \
        { S(70, 300), S(70, 300), P(300), P(300) }, { S(21, 520), S(21, 520), P(520), P(520) },    \
        { S(3, 1500), S(3, 1500), P(1500), P(1500) },                                              \
        { S(20, 2500), S(20, 2500), P(2500), P(2500) },                                            \
        { S(20, 2501), S(20, 2501), P(2501), P(2501) },                                            \
        { S(2, 9001), S(2, 9001), P(9001), P(9001) })                                              \
    ROW(layernorm_without_bias, op_layernorm(tape, x[0], x[1], x[2], 1e-3), UNMEASURED,            \
        { S(2, 3, 5) }, { S(2, 3, 5), P(5) }, { S(67, 83) }, { S(67, 83), P(83) },                 \
        { S(5, 12), P(12) })                                                                       \
    ROW(residual_without_bias,                                                                     \
        op_residual_layernorm(tape, x[0], x[1], 0.3, x[2], NULL, 1e-3), UNMEASURED,                \
        { S(2, 3, 5), S(2, 3, 5) }, { S(67, 83), S(67, 83), P(83) })                               \
    ROW(residual_undropped, op_residual_layernorm(tape, x[0], x[1], 0, x[2], x[2], 1e-3),          \
        UNMEASURED, { S(3, 19), S(3, 19), P(19) }, { S(70, 33), S(70, 33), P(33) })                \
    ROW(sum, op_sum(tape, x[0], ALL_AXES), PASSES(1, 2), { S(ROWS, WIDTH) }, { S(5) },             \
        { S(2, 3, 4, 5) }, { S(37, 41) }, { S(300, 410) })                                         \
    ROW(sum_rows, op_sum(tape, x[0], -1), UNMEASURED, { S(5) }, { S(2, 3, 4, 5) },                 \
        { S(5, 7, 111) }, { S(2, 40001) })                                                         \
    ROW(sum_first, op_sum(tape, x[0], 0), PASSES(1, 2), { S(ROWS, WIDTH) }, { S(5) },              \
        { S(2, 3, 4, 5) }, { S(300, 7, 5) })                                                       \
    ROW(sum_middle, op_sum(tape, x[0], 1), UNMEASURED, { S(2, 3, 4, 5) }, { S(5, 7, 1) },          \
        { S(5, 300, 11) }, { S(2, 3000, 3) })                                                      \
    ROW(mean, op_mean(tape, x[0], ALL_AXES), UNMEASURED, { S(2, 3, 4, 5) }, { S(37, 41) })         \
    ROW(mean_rows, op_mean(tape, x[0], -1), UNMEASURED, { S(2, 3, 4, 5) }, { S(37, 1100) })        \
    ROW(mean_middle, op_mean(tape, x[0], -2), UNMEASURED, { S(2, 3, 4, 5) }, { S(3, 5, 40, 33) })  \
    ROW(variance, op_variance(tape, x[0], ALL_AXES), UNMEASURED, { S(2, 3, 4, 5) }, { S(37, 41) }) \
    ROW(variance_rows, op_variance(tape, x[0], -1), PASSES(1, 3), { S(ROWS, WIDTH) },              \
        { S(2, 3, 4, 5) }, { S(37, 1100) })                                                        \
    ROW(variance_middle, op_variance(tape, x[0], 1), UNMEASURED, { S(2, 3, 4, 5) },                \
        { S(5, 300, 11) })                                                                         \
    ROW(max, op_max(tape, x[0], ALL_AXES), UNMEASURED, { S(2, 3, 4) }, { S(37, 41) })              \
    ROW(max_rows, op_max(tape, x[0], -1), PASSES(1, 2), { S(ROWS, WIDTH) }, { S(2, 3, 4) },        \
        { S(5, 7, 111) })                                                                          \
    ROW(max_middle, op_max(tape, x[0], 1), UNMEASURED, { S(2, 3, 4) }, { S(5, 17, 140) },          \
        { S(5, 70, 3) })                                                                           \
    ROW(argmax,                                                                                    \
        op_multiply(tape, x[0], op_one_hot(tape, op_argmax(tape, far_apart(tape, x[0]), -1),       \
                                           x[0]->shape.size[3])),                                  \
        UNMEASURED, { S(2, 3, 2, 5) }, { S(5, 7, 11, 16) })                                        \
    ROW(cumulative_sum, op_cumulative_sum(tape, x[0], 1), PASSES(2, 4),                            \
        { S(ROWS, WIDTH) }, { S(2, 3, 4, 5) }, { S(5, 300, 11) })                                  \
    ROW(reverse_cumulative_sum, op_reverse_cumulative_sum(tape, x[0], -1), UNMEASURED,             \
        { S(2, 3, 4, 5) }, { S(5, 7, 311) })                                                       \
    ROW(mean_squared_error, op_mean_squared_error(tape, x[0], x[1]), UNMEASURED,                   \
        { S(3, 7), S(3, 7) }, { S(137, 41), S(137, 41) })                                          \
    ROW(cross_entropy, op_cross_entropy(tape, x[0], x[1], NULL), PASSES(1, 3),                     \
        { S(ROWS, WIDTH), INTEGERS(WIDTH, ROWS) }, { S(6, 1), INTEGERS(1, 6) },                    \
        { S(1, 3, 2, 4), INTEGERS(4, 1, 3, 2) }, { S(37, 11), INTEGERS(11, 37) },                  \
        { S(37, 1500), INTEGERS(1500, 37) })                                                       \
    ROW(accuracy, op_multiply(tape, x[0], op_accuracy(tape, far_apart(tape, x[0]), x[1], NULL)),   \
        UNMEASURED, { S(2, 3, 2, 5), INTEGERS(5, 2, 3, 2) },                                       \
        { S(1, 4, 1, 2), INTEGERS(2, 1, 4, 1) }, { S(5, 7, 11, 16), INTEGERS(16, 5, 7, 11) })      \
    ROW(weighted_accuracy,                                                                         \
        op_multiply(tape, x[0], op_accuracy(tape, far_apart(tape, x[0]), x[1], x[2])), UNMEASURED, \
        { S(2, 3, 2, 5), INTEGERS(5, 2, 3, 2), WEIGHTS(2, 3, 2) },                                 \
        { S(5, 7, 11, 16), INTEGERS(16, 5, 7, 11), WEIGHTS(5, 7, 11) })                            \
    ROW(weighted_cross_entropy, op_cross_entropy(tape, x[0], x[1], x[2]), UNMEASURED,              \
        { S(6, 19), INTEGERS(19, 6), WEIGHTS(6) }, { S(37, 11), INTEGERS(11, 37), WEIGHTS(37) })   \
    ROW(embedding, op_embedding(tape, x[0], x[1]), PASSES(1, 2),                                   \
        { P(11, WIDTH), INTEGERS(11, ROWS) }, { P(5, 1), INTEGERS(5, 2, 3, 4) },                   \
        { P(7, 21), INTEGERS(5, 2, 3, 4) }, { P(11, 33), INTEGERS(11, 9, 23) },                    \
        { P(300, 5), INTEGERS(300, 9, 23) }, { P(7, 37), INTEGERS(6, 5000) })                      \
    ROW(scatter_add, op_scatter_add(tape, x[0], x[1], 7), UNMEASURED,                              \
        { S(5, 3), INTEGERS(7, 5) }, { S(1, 1), INTEGERS(7, 1) },                                  \
        { S(2, 3, 4), INTEGERS(6, 2, 3) },                                                         \
        { S(9, 23, 33), INTEGERS(7, 9, 23) }, { S(5000, 37), INTEGERS(6, 5000) })                  \
    ROW(reshape_beside, op_multiply(tape, op_reshape(tape, x[0], shape(5, 6)),                     \
                                    op_exp(tape, op_reshape(tape, op_reshape(tape, x[0],           \
                                        shape(30)), shape(5, 6)))), UNMEASURED, { S(3, 2, 5) })    \
    ROW(reshape, op_exp(tape, op_reshape(tape, x[0], shape(5, 6))), UNMEASURED, { S(3, 2, 5) })    \
    ROW(transpose, op_transpose(tape, x[0], 0, 1), PASSES(2, 4), { S(ROWS, WIDTH) },               \
        { S(3, 4, 5) }, { S(18, 3) }, { S(35, 37, 3) }, { S(129, 257) }, { S(3, 20000) })          \
    ROW(transpose_middle, op_transpose(tape, x[0], 1, 2), UNMEASURED, { S(2, 3, 4, 5) },           \
        { S(2, 35, 37, 3) })                                                                       \
    ROW(transpose_far, op_transpose(tape, x[0], 0, 3), UNMEASURED, { S(2, 3, 4, 5) },              \
        { S(2, 5, 7, 3) }, { S(3, 67, 5, 83) })                                                    \
    ROW(permute, op_permute(tape, x[0], (const int[]){ 2, 3, 1, 0 }), UNMEASURED,                  \
        { S(2, 3, 4, 5) }, { S(2, 35, 37, 3) })                                                    \
    ROW(broadcast_to, op_broadcast_to(tape, x[0], shape(4, 7, 5, 16)), UNMEASURED,                 \
        { S(4, 7, 5, 1) }, { S(4, 1, 5, 1) }, { S(5, 1) }, { S(16) }, { S(4, 7, 1, 1) },           \
        { S(4, 7, 1, 16) })                                                                        \
    ROW(broadcast_rows, op_broadcast_to(tape, x[0], shape(ROWS, WIDTH)), PASSES(1, 2),             \
        { S(WIDTH) }, { S(1, 1) })                                                                 \
    ROW(repeat_heads, op_repeat_heads(tape, x[0], 3), UNMEASURED, { S(2, 3, 2, 5) },               \
        { S(2, 33, 4, 16) })                                                                       \
    ROW(concat, op_concat(tape, x, 2, -1), PASSES(4, 8), { S(ROWS, WIDTH), S(ROWS, WIDTH) },       \
        { S(2, 3, 4), S(2, 3, 5) }, { S(3), S(2) }, { S(5, 7, 11), S(5, 7, 6) })                   \
    ROW(concat_first, op_concat(tape, x, 2, 0), UNMEASURED, { S(2, 3, 4), S(1, 3, 4) },            \
        { S(67, 83), S(3, 83) })                                                                   \
    ROW(concat_middle, op_concat(tape, (Tensor *[]){ x[0], x[1], x[0] }, 3, 1), UNMEASURED,        \
        { S(2, 3, 4), S(2, 1, 4) }, { S(5, 7, 11), S(5, 2, 11) })                                  \
    ROW(stack, op_stack(tape, (Tensor *[]){ x[0], x[1], x[0] }, 3, 1), UNMEASURED,                 \
        { S(2, 3, 4), S(2, 3, 4) }, { S(5, 7, 12), S(5, 7, 12) })                                  \
    ROW(gather, op_gather(tape, x[0], x[1]), UNMEASURED, { S(3, 7), INTEGERS(7, 3, 9) },           \
        { S(7), INTEGERS(7, 9) }, { S(3, 5), INTEGERS(5, 3, 1) },                                  \
        { S(3, 7, 11), INTEGERS(11, 3, 7, 9) }, { S(37, 3), INTEGERS(3, 37, 9) },                  \
        { S(700, 33), INTEGERS(33, 700, 25) })                                                     \
    ROW(one_hot, op_multiply(tape, x[0], op_one_hot(tape, x[1], x[0]->shape.size[2])), UNMEASURED, \
        { S(2, 3, 7), INTEGERS(7, 2, 3) }, { S(3, 67, 83), INTEGERS(83, 3, 67) },                  \
        { S(5, 7, 1), INTEGERS(1, 5, 7) })                                                         \
    ROW(slice, op_slice(tape, x[0], 1, 2, 3), UNMEASURED, { S(2, 6, 3) }, { S(2, 5, 1, 3) },       \
        { S(5, 7, 11) }, { S(3, 67, 5, 83) })                                                      \
    ROW(slice_first, op_slice(tape, x[0], 0, 1, x[0]->shape.size[0] - 1), UNMEASURED,              \
        { S(7) }, { S(3, 2, 4) }, { S(3, 67, 83) })                                                \
    ROW(slice_half, op_slice(tape, x[0], -1, 0, x[0]->shape.size[1] / 2), PASSES(1, 2.5),          \
        { S(ROWS, WIDTH) }, { S(3, 7) })                                                           \
    ROW(select, op_select(tape, x[0], -2, 1), UNMEASURED, { S(2, 3, 4) }, { S(2, 5) },             \
        { S(5, 67, 7, 83) })                                                                       \
    ROW(split, (op_split(tape, x[0], -1, 3, x + 1), op_multiply(tape, x[1], x[3])), UNMEASURED,    \
        { S(2, 6) }, { S(3, 5, 12) })                                                              \
    ROW(causal_linear_attention,                                                                   \
        op_causal_linear_attention(tape, x[0], x[1], x[2], USUAL_EPS, NULL),                       \
        FLOPS(4.0 * HEAD_DIM, 14.0 * HEAD_DIM), { MEASURED_QKV }, { QKV(2, 5, 2, 3, 5) },          \
        { QKV(1, 19, 1, 5, 5) }, { QKV(1, 3, 1, 17, 9) }, { QKV(2, 5, 2, 4, 4) },                  \
        { QKV(2, 5, 3, 8, 8) },                                                                    \
        { QKV(1, 300, 2, 32, 32) }, { QKV(1, 130, 1, 40, 72) }, { QKV(1, 70, 1, 128, 128) })       \
    ROW(causal_linear_state, op_causal_linear_state(tape, x[0], x[1], USUAL_EPS), UNMEASURED,      \
        { S(2, 5, 2, 3), S(2, 5, 2, 4) }, { S(1, 150, 1, 40), S(1, 150, 1, 72) })                  \
    ROW(packed_causal_linear_state, op_causal_linear_state(tape, x[0], NULL, USUAL_EPS),           \
        UNMEASURED, { S(2, 5, 6, 3) }, { S(2, 129, 6, 16) })                                       \
    ROW(decaying_state, state_with_decay(tape, x, (CausalLinearAttentionOptions){ 0 }),            \
        UNMEASURED, { S(2, 5, 2, 3), S(2, 5, 2, 4), P(2, 5, 2) },                                  \
        { S(1, 150, 2, 32), S(1, 150, 2, 24), P(1, 150, 2) })                                      \
    ROW(unnormalized_state,                                                                        \
        state_with_decay(tape, x, (CausalLinearAttentionOptions){ .unnormalized = true,            \
                                                        .key_lengths = lengths_of(tape, x[0]) }),  \
        UNMEASURED, { S(2, 5, 2, 3), S(2, 5, 2, 4), P(2, 5, 2) },                                  \
        { S(2, 70, 2, 20), S(2, 70, 2, 30), P(2, 70, 2) })                                         \
    ROW(packed_causal_linear_attention,                                                            \
        op_causal_linear_attention(tape, x[0], NULL, NULL, USUAL_EPS, NULL), UNMEASURED,           \
        { S(2, 5, 6, 3) }, { S(2, 129, 6, 16) })                                                   \
    ROW(linear_attention,                                                                          \
        op_linear_attention(tape, x[0], x[1], x[2], (LinearAttentionOptions){ .eps = 1e-6 }),      \
        FLOPS(4.0 * HEAD_DIM, 14.0 * HEAD_DIM), { MEASURED_QKV },                                  \
        { S(2, 5, 2, 3), S(2, 4, 2, 3), S(2, 4, 2, 5) },                                           \
        { S(2, 33, 2, 8), S(2, 70, 2, 8), S(2, 70, 2, 24) })                                       \
    ROW(packed_linear_attention,                                                                   \
        op_linear_attention(tape, x[0], NULL, NULL, (LinearAttentionOptions){ .eps = 1e-6 }),      \
        UNMEASURED,                                                                                \
        { S(2, 5, 6, 3) })                                                                         \
    ROW(softmax_attention, op_softmax_attention(tape, x[0], x[1], x[2], NO_OPTIONS), UNMEASURED,   \
        { S(2, 5, 2, 3), S(2, 4, 2, 3), S(2, 4, 2, 5) }, { QKV(1, 71, 1, 1, 1) },                  \
        { S(1, 5, 1, 2), S(1, 70, 1, 2), S(1, 70, 1, 1) },                                         \
        { S(2, 33, 2, 8), S(2, 70, 2, 8), S(2, 70, 2, 24) }, { QKV(1, 270, 1, 8, 5) },             \
        { S(2, 100, 2, 8), S(2, 1, 2, 8), S(2, 1, 2, 5) },                                         \
        { S(2, 130, 2, 8), S(2, 65, 2, 8), S(2, 65, 2, 5) })                                       \
    ROW(causal_softmax_attention, op_causal_softmax_attention(tape, x[0], x[1], x[2], NO_OPTIONS), \
        FLOPS(2.0 * POSITIONS, 7.0 * POSITIONS), { MEASURED_QKV }, { QKV(2, 5, 2, 3, 5) },         \
        { QKV(1, 71, 1, 1, 1) }, { QKV(1, 5, 2, 4, 4) }, { QKV(1, 130, 2, 32, 32) },               \
        { QKV(1, 270, 1, 8, 5) })                                                                  \
    ROW(packed_softmax_attention, op_causal_softmax_attention(tape, x[0], NULL, NULL, NO_OPTIONS), \
        UNMEASURED, { S(2, 5, 6, 3) }, { S(1, 67, 3, 1) }, { S(2, 65, 6, 64) })                    \
    ROW(additive_mask,                                                                             \
        op_softmax_attention(tape, x[0], x[1], x[2],                                               \
                             additive_mask(tape, x[0], x[1], true, true)),                         \
        UNMEASURED, { S(2, 5, 2, 3), S(2, 4, 2, 3), S(2, 4, 2, 5) },                               \
        { S(2, 33, 2, 8), S(2, 70, 2, 8), S(2, 70, 2, 24) },                                       \
        { S(2, 130, 2, 40), S(2, 65, 2, 40), S(2, 65, 2, 5) })                                     \
    ROW(causal_additive_mask,                                                                      \
        op_causal_softmax_attention(tape, x[0], x[1], x[2],                                        \
                                    additive_mask(tape, x[0], x[1], false, false)),                \
        UNMEASURED, { QKV(2, 5, 2, 3, 5) }, { QKV(1, 71, 1, 1, 1) }, { QKV(2, 130, 2, 32, 32) },   \
        { QKV(1, 200, 1, 8, 5) })                                                                  \
    ROW(packed_additive_mask,                                                                      \
        op_causal_softmax_attention(tape, x[0], NULL, NULL,                                        \
                                    additive_mask(tape, x[0], NULL, false, true)),                 \
        UNMEASURED, { S(2, 5, 6, 3) }, { S(2, 67, 6, 16) })                                        \
    ROW(decaying_softmax_attention,                                                                \
        op_causal_softmax_attention(tape, x[0], x[1], x[2],                                        \
                                    decaying(tape, x[3], 0.5, NO_OPTIONS)),                        \
        FLOPS(2.0 * POSITIONS, 7.0 * POSITIONS), { MEASURED_QKV, P(SEQUENCES, POSITIONS, HEADS) }, \
        { QKV(2, 5, 2, 3, 5), P(2, 5, 2) }, { QKV(1, 71, 1, 1, 1), P(1, 71, 1) },                  \
        { QKV(1, 130, 2, 32, 32), P(1, 130, 2) }, { QKV(1, 270, 1, 8, 5), P(1, 270, 1) })          \
    ROW(strong_decay_of_softmax,                                                                   \
        op_causal_softmax_attention(tape, x[0], x[1], x[2],                                        \
                                    decaying(tape, x[3], 30, NO_OPTIONS)),                         \
        UNMEASURED, { QKV(1, 3, 1, 2, 2), P(1, 3, 1) }, { QKV(2, 130, 1, 8, 5), P(2, 130, 1) })    \
    ROW(decaying_key_lengths,                                                                      \
        op_causal_softmax_attention(                                                               \
            tape, x[0], x[1], x[2],                                                                \
            decaying(tape, x[3], 0.1,                                                              \
                     (SoftmaxAttentionOptions){ .key_lengths = lengths_of(tape, x[1]) })),         \
        UNMEASURED, { QKV(2, 5, 1, 3, 2), P(2, 5, 1) }, { QKV(2, 150, 2, 16, 24), P(2, 150, 2) })  \
    ROW(packed_decaying_mask,                                                                      \
        op_causal_softmax_attention(                                                               \
            tape, x[0], NULL, NULL,                                                                \
            decaying(tape, x[1], 0.1, additive_mask(tape, x[0], NULL, false, true))),              \
        UNMEASURED, { S(2, 5, 6, 3), P(2, 5, 2) }, { S(2, 67, 6, 16), P(2, 67, 2) })               \
    ROW(window, op_causal_softmax_attention(tape, x[0], x[1], x[2],                                \
                                            limited(tape, x, true, 0, 0, false)),                  \
        UNMEASURED, { QKV(2, 7, 2, 3, 5) }, { QKV(1, 71, 1, 1, 1) }, { QKV(2, 130, 2, 32, 32) },   \
        { QKV(1, 270, 1, 8, 5) })                                                                  \
    ROW(window_and_sinks, op_causal_softmax_attention(tape, x[0], x[1], x[2],                      \
                                                      limited(tape, x, true, 2, 0, false)),        \
        UNMEASURED, { QKV(1, 9, 2, 3, 5) }, { QKV(2, 130, 2, 40, 32) }, { QKV(1, 270, 1, 8, 5) })  \
    ROW(prefix, op_causal_softmax_attention(tape, x[0], x[1], x[2],                                \
                                            limited(tape, x, false, 0, 3, false)),                 \
        UNMEASURED, { QKV(2, 5, 2, 3, 5) }, { QKV(2, 70, 2, 16, 32) })                             \
    ROW(packed_window, op_causal_softmax_attention(tape, x[0], NULL, NULL,                         \
                                                   limited(tape, x, true, 1, 70, false)),          \
        UNMEASURED, { S(2, 5, 6, 3) }, { S(2, 135, 6, 16) })                                       \
    ROW(documents, op_softmax_attention(tape, x[0], x[1], x[2],                                    \
                                        limited(tape, x, false, 0, 0, true)),                      \
        UNMEASURED, { QKV(1, 7, 2, 3, 5) }, { QKV(1, 71, 1, 1, 1) }, { QKV(1, 200, 2, 16, 24) })   \
    ROW(causal_documents, op_causal_softmax_attention(tape, x[0], x[1], x[2],                      \
                                                      limited(tape, x, false, 0, 0, true)),        \
        UNMEASURED, { QKV(1, 7, 2, 3, 5) }, { QKV(1, 71, 1, 1, 1) }, { QKV(1, 200, 2, 16, 24) })   \
    ROW(limited_documents, op_causal_softmax_attention(tape, x[0], x[1], x[2],                     \
                                                       limited(tape, x, true, 1, 2, true)),        \
        UNMEASURED, { QKV(1, 11, 2, 3, 5) }, { QKV(1, 75, 1, 8, 8) }, { QKV(1, 300, 2, 16, 24) })  \
    ROW(decaying_window,                                                                           \
        op_causal_softmax_attention(                                                               \
            tape, x[0], x[1], x[2],                                                                \
            decaying(tape, x[3], 0.1, limited(tape, x, true, 1, 0, true))),                        \
        UNMEASURED, { QKV(1, 7, 2, 3, 2), P(1, 7, 2) }, { QKV(1, 150, 2, 16, 24), P(1, 150, 2) })  \
    ROW(sink_logits, op_causal_softmax_attention(tape, x[0], x[1], x[2],                           \
                                                 (SoftmaxAttentionOptions){ .sink_logits = x[3] }),\
        UNMEASURED, { QKV(2, 5, 2, 3, 5), P(2) }, { QKV(1, 71, 1, 1, 1), P(1) },                   \
        { QKV(2, 130, 3, 40, 32), P(3) })                                                          \
    ROW(sink_logits_of_all_keys, op_softmax_attention(                                             \
            tape, x[0], x[1], x[2],                                                                \
            (SoftmaxAttentionOptions){ .key_lengths = lengths_of(tape, x[1]),                      \
                                       .sink_logits = x[3] }),                                     \
        UNMEASURED, { S(2, 5, 2, 3), S(2, 4, 2, 3), S(2, 4, 2, 5), P(2) },                         \
        { S(2, 33, 2, 16), S(2, 70, 2, 16), S(2, 70, 2, 16), P(2) })                               \
    ROW(packed_sink_logits, op_causal_softmax_attention(                                           \
            tape, x[0], NULL, NULL, with_sink_logits(x[1], limited(tape, x, true, 1, 0, false))),  \
        UNMEASURED, { S(2, 7, 6, 3), P(2) }, { S(2, 135, 6, 16), P(2) })                           \
    ROW(masked_sink_logits, op_causal_softmax_attention(                                           \
            tape, x[0], x[1], x[2],                                                                \
            with_sink_logits(x[3], decaying(tape, x[4], 0.1,                                       \
                                            additive_mask(tape, x[0], x[1], true, true)))),        \
        UNMEASURED, { QKV(2, 5, 2, 3, 2), P(2), P(2, 5, 2) },                                      \
        { QKV(1, 67, 2, 16, 24), P(2), P(1, 67, 2) })                                              \
    ROW(masked_attention, masked_attention(tape, x), UNMEASURED,                                   \
        { S(2, 5, 2, 3), S(2, 4, 2, 3), S(2, 4, 2, 5) },                                           \
        { S(2, 33, 2, 16), S(2, 70, 2, 16), S(2, 70, 2, 16) })                                     \
    ROW(recurrent, attend_in_form(tape, x, FORM_RECURRENT, FEATURE_MAP_ELU_PLUS_ONE), UNMEASURED,  \
        { QKVS(2, 5, 2, 3, 4, 2) }, { QKVS(2, 9, 3, 20, 40, 2) })                                  \
    ROW(chunked, attend_in_form(tape, x, FORM_CHUNKED, FEATURE_MAP_ELU_PLUS_ONE), UNMEASURED,      \
        { QKVS(1, 9, 2, 3, 4, 1) }, { QKVS(1, 150, 2, 32, 32, 1) },                                \
        { QKVS(1, 140, 1, 64, 64, 1) },                                                            \
        { QKVS(1, 150, 1, 128, 128, 1) }, /* below, rows of any alignment */                       \
        { QKVS(1, 140, 2, 37, 61, 1) }, { QKVS(1, 140, 2, 6, 18, 1) },                             \
        { QKVS(1, 70, 1, 130, 20, 1) })                                                            \
    ROW(chunk_parallel, attend_in_form(tape, x, FORM_CHUNK_PARALLEL, FEATURE_MAP_ELU_PLUS_ONE),    \
        UNMEASURED, { QKVS(1, 9, 2, 3, 4, 1) }, { QKVS(2, 200, 2, 20, 30, 2) },                    \
        { QKVS(1, 200, 1, 64, 33, 1) }, { QKVS(1, 200, 1, 100, 128, 1) },                          \
        { QKVS(1, 260, 22, 8, 8, 1) }, { QKVS(1, 700, 1, 8, 8, 1) }) /* several segments */        \
    ROW(quadratic, attend_in_form(tape, x, FORM_QUADRATIC, FEATURE_MAP_ELU_PLUS_ONE), UNMEASURED,  \
        { QKVS(2, 5, 2, 3, 4, 2) }, { QKVS(2, 150, 2, 20, 40, 2) })                                \
    ROW(best_relu, attend_in_form(tape, x, FORM_BEST, FEATURE_MAP_RELU), UNMEASURED,               \
        { QKVS(1, 3, 1, 2, 4, 1) }, { QKVS(2, 80, 2, 24, 32, 2) }, { QKVS(1, 300, 1, 64, 64, 1) }) \
    ROW(best_softplus, attend_in_form(tape, x, FORM_BEST, FEATURE_MAP_SOFTPLUS), UNMEASURED,       \
        { QKVS(1, 5, 2, 3, 4, 1) }, { QKVS(2, 80, 1, 50, 64, 2) })                                 \
    ROW(recurrent_softplus, attend_in_form(tape, x, FORM_RECURRENT, FEATURE_MAP_SOFTPLUS),         \
        UNMEASURED, { QKVS(1, 1, 2, 3, 4, 1) }, { QKVS(1, 1, 2, 32, 32, 1) })                      \
    ROW(quadratic_relu, attend_in_form(tape, x, FORM_QUADRATIC, FEATURE_MAP_RELU), UNMEASURED,     \
        { QKVS(1, 3, 1, 2, 4, 1) }, { QKVS(1, 70, 2, 8, 8, 1) })                                   \
    ROW(offsets_recurrent, attend_by_offsets(tape, x, FORM_RECURRENT), UNMEASURED,                 \
        { QKVS(1, 7, 1, 3, 2, 4) }, { QKVS(1, 40, 2, 16, 16, 4) })                                 \
    ROW(offsets_chunked, attend_by_offsets(tape, x, FORM_CHUNKED), UNMEASURED,                     \
        { QKVS(1, 7, 1, 3, 2, 4) }, { QKVS(1, 170, 2, 32, 24, 4) })                                \
    ROW(offsets_chunk_parallel, attend_by_offsets(tape, x, FORM_CHUNK_PARALLEL), UNMEASURED,       \
        { QKVS(1, 7, 1, 3, 2, 4) }, { QKVS(1, 300, 2, 24, 64, 4) },                                \
        { QKVS(1, 150, 1, 150, 8, 4) })                                                            \
    ROW(offsets_quadratic, attend_by_offsets(tape, x, FORM_QUADRATIC), UNMEASURED,                 \
        { QKVS(1, 7, 1, 3, 2, 4) }, { QKVS(1, 170, 2, 16, 16, 4) })                                \
    ROW(lengths_recurrent, attend_by_lengths(tape, x, FORM_RECURRENT), UNMEASURED,                 \
        { QKVS(2, 5, 1, 3, 2, 2) }, { QKVS(2, 40, 2, 16, 16, 2) })                                 \
    ROW(lengths_chunked, attend_by_lengths(tape, x, FORM_CHUNKED), UNMEASURED,                     \
        { QKVS(2, 5, 1, 3, 2, 2) }, { QKVS(2, 130, 2, 32, 24, 2) },                                \
        { QKVS(2, 150, 1, 67, 128, 2) })                                                           \
    ROW(lengths_chunk_parallel, attend_by_lengths(tape, x, FORM_CHUNK_PARALLEL), UNMEASURED,       \
        { QKVS(2, 5, 1, 3, 2, 2) }, { QKVS(2, 150, 1, 64, 64, 2) })                                \
    ROW(lengths_quadratic, attend_by_lengths(tape, x, FORM_QUADRATIC), UNMEASURED,                 \
        { QKVS(2, 5, 1, 3, 2, 2) }, { QKVS(2, 150, 2, 16, 16, 2) })                                \
    ROW(decay_recurrent, DECAY(0.5, .form = FORM_RECURRENT), UNMEASURED,                           \
        { DECAYS(1, 5, 2, 3, 4, 1, 1) }, { DECAYS(2, 40, 3, 20, 40, 2, 1) },                       \
        { DECAYS(1, 129, 1, 2, 2, 1, 1) }) /* the last segment has one position */                 \
    ROW(decay_chunked, DECAY(0.5, .form = FORM_CHUNKED), UNMEASURED,                               \
        { DECAYS(1, 9, 1, 3, 4, 1, 1) }, { DECAYS(1, 150, 2, 32, 32, 1, 1) },                      \
        { DECAYS(1, 140, 2, 37, 61, 1, 1) }, { DECAYS(1, 140, 1, 64, 128, 1, 1) })                 \
    ROW(decay_from_no_state, attend_from_no_state(tape, x), UNMEASURED,                            \
        { QKV(1, 5, 2, 3, 4), P(1, 5, 2) }, { QKV(2, 200, 2, 16, 20), P(2, 200, 2) })              \
    ROW(decay_chunk_parallel, DECAY(0.02, .form = FORM_CHUNK_PARALLEL), UNMEASURED,                \
        { DECAYS(1, 9, 1, 3, 4, 1, 1) }, { DECAYS(2, 200, 2, 20, 30, 2, 1) },                      \
        { DECAYS(1, 200, 1, 64, 33, 1, 1) },                                                       \
        { DECAYS(1, 400, 2, 8, 8, 1, 1) }) /* several segments */                                  \
    ROW(decay_quadratic, DECAY(0.5, .form = FORM_QUADRATIC), UNMEASURED,                           \
        { DECAYS(1, 5, 2, 3, 4, 1, 1) }, { DECAYS(2, 150, 2, 20, 40, 2, 1) })                      \
    ROW(strong_decay, DECAY(0, .form = FORM_BEST), UNMEASURED,                                     \
        { DECAYS(1, 9, 1, 2, 2, 1, 1) }, { DECAYS(1, 90, 2, 32, 32, 1, 1) })                       \
    ROW(decay_lengths, DECAY(0.5, .key_lengths = lengths_of(tape, x[1])), UNMEASURED,              \
        { DECAYS(2, 5, 1, 3, 2, 2, 1) }, { DECAYS(2, 70, 2, 16, 24, 2, 1) })                       \
    ROW(decay_offsets, DECAY(0.5, .offsets = four_sequences(tape, x)), UNMEASURED,                 \
        { DECAYS(1, 7, 1, 3, 2, 4, 1) }, { DECAYS(1, 170, 2, 32, 24, 4, 1) })                      \
    ROW(state_is_query,                                                                            \
        op_causal_linear_attention(                                                                \
            tape, x[0], x[1], x[2],                                                                \
            (CausalLinearAttentionOptions){ .eps = 9, .form = FORM_CHUNKED, .state = x[3] },       \
            NULL),                                                                                 \
        UNMEASURED, { QKVS(1, 3, 3, 3, 2, 1) }) /* of one shape */                                 \
    ROW(state_is_value,                                                                            \
        op_causal_linear_attention(                                                                \
            tape, x[0], x[1], x[2],                                                                \
            (CausalLinearAttentionOptions){ .unnormalized = true, .state = x[3] }, NULL),          \
        UNMEASURED, { QKV(1, 2, 2, 2, 2), P(1, 2, 2, 2) }, { QKV(2, 3, 3, 3, 3), P(2, 3, 3, 3) })  \
    ROW(unnormalized, DECAY(0.5, .unnormalized = true), UNMEASURED,                                \
        { DECAYS(1, 5, 2, 3, 4, 1, 0) }, { DECAYS(1, 90, 2, 32, 40, 1, 0) })                       \
    ROW(unnormalized_chunk_parallel, DECAY(0.1, .unnormalized = true, .form = FORM_CHUNK_PARALLEL),\
        UNMEASURED, { DECAYS(1, 9, 1, 3, 4, 1, 0) }, { DECAYS(2, 200, 2, 20, 30, 2, 0) })          \
    ROW(unnormalized_quadratic, DECAY(0.5, .unnormalized = true, .form = FORM_QUADRATIC),          \
        UNMEASURED, { DECAYS(1, 5, 2, 3, 4, 1, 0) }, { DECAYS(2, 150, 2, 20, 40, 2, 0) })          \
    EXTENSION_OPERATIONS(ROW)
/* clang-format on */

#define DEFINE_ROW(name, expression, cost, ...)                                                    \
    static Tensor *apply_##name(Tape *tape, Tensor **x)                                            \
    {                                                                                              \
        return expression;                                                                         \
    }                                                                                              \
    static const Input cases_of_##name[][MAX_INPUTS] = { __VA_ARGS__ };
#define ENTER_ROW(name, expression, cost, ...)                                                     \
    { #name, apply_##name, cost, sizeof cases_of_##name / sizeof *cases_of_##name,                 \
      cases_of_##name },
OPERATIONS(DEFINE_ROW)
static const Operation operations[] = { OPERATIONS(ENTER_ROW) };
enum { OPERATION_COUNT = sizeof operations / sizeof *operations };

#endif
