/* Softmax attention against exact sums and the plain kernels. */
#include "tests/support.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const SoftmaxAttentionOptions none;

static SoftmaxAttentionOptions with_lengths(Tensor *key_lengths)
{
    return (SoftmaxAttentionOptions){ .key_lengths = key_lengths };
}

static SoftmaxAttentionOptions with_decay(Tensor *log_decay)
{
    return (SoftmaxAttentionOptions){ .log_decay = log_decay };
}

static Tensor *softmax_attention(Tape *tape, Tensor *query, Tensor *key, Tensor *value,
                                 SoftmaxAttentionOptions options, bool causal)
{
    return (causal ? op_causal_softmax_attention : op_softmax_attention)(tape, query, key, value,
                                                                         options);
}

static bool row_has_nan(const Real *out, int64_t row, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (isnan(out[row * count + i]))
            return true;
    return false;
}

/* ------------------------------------------------------------------------------- plain kernels */
typedef struct Case {
    int64_t B, N, keys, H, D, M;
    bool causal;
    const int32_t *lengths;
    Real factor; /* of the queries */
    const Real *mask;
    Shape mask_shape;
    int64_t window; /* or 0 */
} Case;

/* Arguments; dout is the gradient of the result. */
typedef struct Arrays {
    Real *query, *key, *value, *dout;
} Arrays;
/* Indices of an Outcome. */
enum { OUT, DQUERY, DKEY, DVALUE };

static Arrays arrays_for(const Case *c)
{
    const int64_t queries = c->B * c->N * c->H, keys = c->B * c->keys * c->H;
    Arrays x = { .query = test_normal(1, queries * c->D),
                 .key = test_normal(2, keys * c->D),
                 .value = test_normal(3, keys * c->M),
                 .dout = test_normal(TEST_UPSTREAM, queries * c->M) };
    for (int64_t i = 0; i < queries * c->D; i++)
        x.query[i] *= c->factor;
    return x;
}

static Tensor *attention_of(Tape *tape, Tensor *const *in, void *context)
{
    const Case *c = context;
    const SoftmaxAttentionOptions options = {
        .key_lengths = c->lengths ? tape_input_i32(tape, c->lengths, shape(c->B)) : NULL,
        .mask = c->mask ? tape_input(tape, c->mask, c->mask_shape) : NULL,
        .window = c->window,
    };
    return softmax_attention(tape, in[0], in[1], in[2], options, c->causal);
}

/* device: NULL for the one under test */
static Outcome computed(const char *device, Case *c, const Arrays *x)
{
    const CheckInput inputs[] = { { shape(c->B, c->N, c->H, c->D), x->query },
                                  { shape(c->B, c->keys, c->H, c->D), x->key },
                                  { shape(c->B, c->keys, c->H, c->M), x->value } };
    return test_outcome(device, 0, attention_of, c, inputs, 3);
}

/* The outcome on the device under test, which is plain's. */
static Outcome check_arrays(Case *c, const Arrays *x, double tolerance)
{
    const Outcome y = computed(NULL, c, x), plain = computed("plain", c, x);
    assert_outcomes_near("softmax attention", &y, &plain, tolerance);
    return y;
}

static void check_case(Case c, double tolerance)
{
    const Arrays x = arrays_for(&c);
    check_arrays(&c, &x, tolerance);
}

TEST(equals_plain_for_shapes_around_tile_sizes)
{
    const int64_t lengths[] = { 1, 2, 9, 32, 33, 63, 64, 65, 96, 150 };
    const int64_t heads[][3] = { { 1, 1, 1 },   { 2, 3, 5 },   { 3, 8, 8 },   { 1, 16, 24 },
                                 { 2, 32, 32 }, { 1, 33, 17 }, { 1, 64, 64 }, { 1, 100, 48 } };
    for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++)
        for (size_t h = 0; h < sizeof heads / sizeof *heads; h++)
            for (int causal = 0; causal < 2; causal++)
                check_case((Case){ 1 + (int64_t)(n + h) % 2, lengths[n], lengths[n], heads[h][0],
                                   heads[h][1], heads[h][2], causal, .factor = 1 },
                           VECTOR_TOLERANCE);
}

/* The CPU sums over blocks of 4096 keys. */
TEST(more_keys_than_a_block)
{
    if (device_is_cuda(test_device()))
        return;
    const int32_t lengths[] = { 4097, 9000 };
    check_case((Case){ 2, 70, 9000, 1, 3, 2, false, lengths, .factor = 1 }, VECTOR_TOLERANCE);
}

/* Keys past a length are not read: they hold NaN here, and their gradients are 0. */
TEST(key_lengths)
{
    const int32_t lengths[] = { 1, 63, 64, 65, 128, 130, 7 };
    for (int causal = 0; causal < 2; causal++) {
        Case c = { 7, 130, 130, 2, 6, 10, causal, lengths, .factor = 1 };
        Arrays x = arrays_for(&c);
        int64_t key_row = c.H * c.D, value_row = c.H * c.M;
        for (int64_t b = 0; b < c.B; b++)
            for (int64_t j = lengths[b]; j < c.keys; j++) {
                x.key[(b * c.keys + j) * key_row] = (Real)NAN;
                x.value[(b * c.keys + j) * value_row] = (Real)NAN;
            }
        const Outcome y = check_arrays(&c, &x, VECTOR_TOLERANCE);
        for (int64_t b = 0; b < c.B; b++)
            for (int64_t i = lengths[b] * key_row; i < c.keys * key_row; i++)
                ck_assert(y.values[DKEY][b * c.keys * key_row + i] == 0);
    }
}

/* ------------------------------------------------------------------------------- additive masks */
static const Real excluded = -(Real)INFINITY;

/* 0 and -infinity: the first lengths[b] keys, and with causal those up to the query's position. */
TEST(a_mask_of_infinities_equals_key_lengths_and_the_causal_mask)
{
    enum { B = 3, N = 70 };
    const int32_t lengths[B] = { 1, 64, 67 };
    for (int causal = 0; causal < 2; causal++) {
        Case c = { B, N, N, 2, 6, 10, causal, lengths, .factor = 1 };
        const Arrays x = arrays_for(&c);
        const Outcome expected = computed(NULL, &c, &x);
        Real *mask = test_zeros(B * N * N);
        for (int i = 0; i < B * N * N; i++)
            if (i % N >= lengths[i / (N * N)] || (causal && i % N > i / N % N))
                mask[i] = excluded;
        c = (Case){
            B, N, N, 2, 6, 10, false, NULL, 1, .mask = mask, .mask_shape = shape(B, 1, N, N)
        };
        const Outcome y = computed(NULL, &c, &x);
        assert_outcomes_near("a mask", &y, &expected, VECTOR_TOLERANCE);
    }
}

/* op_softmax of the scores and the mask */
TEST(a_mask_is_added_to_the_scores)
{
    enum { B = 2, N = 5, H = 3, KEYS = 7, D = 4 };
    const Shape shapes[] = { shape(N, KEYS), shape(1, 1, N, KEYS), shape(B, 1, N, KEYS),
                             shape(1, H, N, KEYS), shape(B, H, N, KEYS) };
    Tape *tape = tape_new(test_device());
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        Real *values = test_normal(4, shape_count(shapes[s]));
        values[1] = excluded;
        Tensor *q = tape_variable(tape, test_normal(1, B * N * H * D), shape(B, N, H, D));
        Tensor *k = tape_variable(tape, test_normal(2, B * KEYS * H * D), shape(B, KEYS, H, D));
        Tensor *v = tape_variable(tape, test_normal(3, B * KEYS * H * D), shape(B, KEYS, H, D));
        Tensor *mask = tape_input(tape, values, shapes[s]);
        tape_check_finite(tape, true); /* does not find the mask's -infinity */
        Tensor *out =
            op_softmax_attention(tape, q, k, v, (SoftmaxAttentionOptions){ .mask = mask });
        tape_check_finite(tape, false);
        tape_set_recording(tape, false);
        Tensor *scores =
            op_matmul_nt(tape, op_transpose(tape, q, 1, 2), op_transpose(tape, k, 1, 2));
        Tensor *P = op_softmax(tape, op_add(tape, op_scale(tape, scores, 1 / sqrt(D)), mask));
        Tensor *expected =
            op_transpose(tape, op_matmul(tape, P, op_transpose(tape, v, 1, 2)), 1, 2);
        tape_set_recording(tape, true);
        assert_close(test_values(out), test_values(expected), tensor_count(out), VECTOR_TOLERANCE);
        tape_backward(tape, op_sum(tape, op_reshape(tape, out, shape(tensor_count(out))), 0));
        tape_reset(tape);
    }
    tape_free(tape);
}

/* A mask that adds one large number to all scores of a row changes nothing but their rounding. The
 * scores are exact: multiples of 1/2, rounded by the mask alone. */
static const Real offsets[] = { 0, (Real)-1e9, -(Real)FLT_MAX, (Real)1e9, (Real)-1e4 };
enum { OFFSETS = sizeof offsets / sizeof *offsets };

/* Every query has one of the offsets; those with 0 have masks of 0 and -1e9 side by side. */
static Real *mask_of_offsets(int64_t N)
{
    Real *mask = test_zeros(N * N);
    for (int64_t i = 0; i < N; i++)
        for (int64_t j = 0; j < N; j++)
            mask[i * N + j] = i % OFFSETS == 0 && j % 3 == 1 ? (Real)-1e9 : offsets[i % OFFSETS];
    return mask;
}

/* out, dq, dk, dv of a head in double; s_ij is a Real */
static void exact_attention(double *results[4], const Case *c, const Arrays *x)
{
    for (int64_t i = 0; i < c->N; i++) {
        const int64_t end = c->causal ? i + 1 : c->keys;
        const Real *q = x->query + i * c->D, *g = x->dout + i * c->M;
        double P[256], sum = 0, m = -INFINITY, D_i = 0, *out = results[OUT] + i * c->M;
        for (int64_t j = 0; j < end; j++) {
            const Real s = (Real)(test_dot(q, x->key + j * c->D, c->D) / sqrt((double)c->D));
            P[j] = (double)(Real)(s + c->mask[i * c->keys + j]);
            m = P[j] > m ? P[j] : m;
        }
        for (int64_t j = 0; j < end; j++)
            sum += P[j] = exp(P[j] - m);
        for (int64_t j = 0; j < end; j++)
            for (int64_t e = 0; e < c->M; e++)
                out[e] += P[j] / sum * (double)x->value[j * c->M + e];
        for (int64_t e = 0; e < c->M; e++)
            D_i += (double)g[e] * out[e];
        for (int64_t j = 0; j < end; j++) {
            const double dP = test_dot(g, x->value + j * c->M, c->M);
            const double dS = P[j] / sum * (dP - D_i) / sqrt((double)c->D);
            for (int64_t e = 0; e < c->D; e++) {
                results[DQUERY][i * c->D + e] += dS * (double)x->key[j * c->D + e];
                results[DKEY][j * c->D + e] += dS * (double)q[e];
            }
            for (int64_t e = 0; e < c->M; e++)
                results[DVALUE][j * c->M + e] += P[j] / sum * (double)g[e];
        }
    }
}

/* The outcome on the device under test, with the inputs cast to bf16. */
static Outcome computed_in_bf16(Case *c, const Arrays *x)
{
    Tape *tape = tape_new(test_device());
    tape_set_precision(tape, PRECISION_BF16);
    Tensor *in[] = { tape_variable(tape, x->query, shape(c->B, c->N, c->H, c->D)),
                     tape_variable(tape, x->key, shape(c->B, c->keys, c->H, c->D)),
                     tape_variable(tape, x->value, shape(c->B, c->keys, c->H, c->M)) };
    Tensor *cast[3];
    for (int i = 0; i < 3; i++)
        cast[i] = op_cast(tape, in[i], TENSOR_BF16);
    Tensor *out = op_cast(tape, attention_of(tape, cast, c), TENSOR_REAL);
    tensor_keep(out);
    tape_backward_from(tape, out, tape_input(tape, x->dout, out->shape));
    Outcome outcome = { 0 };
    test_note(&outcome, out);
    for (int i = 0; i < 3; i++)
        test_note(&outcome, tensor_gradient(in[i]));
    tape_free(tape);
    return outcome;
}

static void check_offsets(const char *device, bool bf16, bool causal)
{
    enum { N = 70, D = 4, M = 4 };
    Case c = {
        1, N, N, 1, D, M, causal, NULL, 1, .mask = mask_of_offsets(N), .mask_shape = shape(N, N)
    };
    const Arrays x = arrays_for(&c);
    for (int i = 0; i < N * D; i++) {
        x.query[i] = (Real)round((double)x.query[i]);
        x.key[i] = (Real)round((double)x.key[i]);
        x.value[i] = test_rounded_to_bf16(x.value[i]);
    }
    double sums[4][N * D] = { { 0 } };
    exact_attention((double *[]){ sums[0], sums[1], sums[2], sums[3] }, &c, &x);
    const Outcome y = bf16 ? computed_in_bf16(&c, &x) : computed(device, &c, &x);
    for (int result = 0; result < 4; result++) {
        Real expected[N * D];
        for (int i = 0; i < N * D; i++)
            expected[i] = (Real)sums[result][i];
        assert_close(y.values[result], expected, N * D, bf16 ? 2e-2 : VECTOR_TOLERANCE);
    }
}

TEST(a_large_offset_of_a_row_keeps_its_gradients)
{
    for (int causal = 0; causal < 2; causal++) {
        check_offsets("plain", false, causal);
        check_offsets(NULL, false, causal);
        if (test_has_bf16())
            check_offsets(NULL, true, causal);
    }
}

/* Over more keys than a block of the CPU: their rows of out and of the gradient are 0, and the
 * other queries are as without them. */
TEST(queries_without_keys_get_0)
{
    enum { N = 3, KEYS = 4200, D = 5 };
    Real *mask = test_normal(4, N * KEYS);
    for (int i = KEYS; i < 2 * KEYS; i++)
        mask[i] = excluded;
    for (int i = 0; i < KEYS - 1; i++)
        mask[i] = excluded; /* query 0 attends to the last key alone */
    Case c = { 1, N, KEYS, 1, D, D, false, NULL, 1, .mask = mask, .mask_shape = shape(N, KEYS) };
    const Arrays x = arrays_for(&c);
    const Outcome y = check_arrays(&c, &x, VECTOR_TOLERANCE);
    for (int i = D; i < 2 * D; i++)
        ck_assert(y.values[OUT][i] == 0 && y.values[DQUERY][i] == 0);
    assert_close(y.values[OUT], x.value + (KEYS - 1) * D, D, VECTOR_TOLERANCE);
    for (int i = 2 * D; i < 3 * D; i++)
        ck_assert(y.values[OUT][i] != 0 && y.values[DQUERY][i] != 0);
    for (int i = 0; i < KEYS * D; i++)
        ck_assert(isfinite(y.values[DKEY][i]) && isfinite(y.values[DVALUE][i]));
}

/* A sink is one more key whose score is the sink's logit and whose value is 0. */
TEST(a_sink_equals_a_key_of_zeros_with_a_mask)
{
    enum { B = 2, N = 70, H = 2, D = 5, M = 3 };
    Tape *tape = tape_new(test_device());
    static const Real logits[H] = { (Real)1.5, -2 };
    Real *keys = test_normal(2, B * (N + 1) * H * D), *values = test_normal(3, B * (N + 1) * H * M);
    Real *mask = test_zeros(H * N * (N + 1));
    for (int h = 0; h < H; h++)
        for (int i = 0; i < N; i++)
            for (int j = 0; j <= N; j++)
                mask[(h * N + i) * (N + 1) + j] = j == N ? logits[h] : j > i ? -(Real)INFINITY : 0;
    Tensor *query = tape_input(tape, test_normal(1, B * N * H * D), shape(B, N, H, D));
    Tensor *key = tape_input(tape, keys, shape(B, N + 1, H, D));
    Tensor *value = tape_input(tape, values, shape(B, N + 1, H, M));
    Tensor *first_keys = op_slice(tape, key, 1, 0, N), *first = op_slice(tape, value, 1, 0, N);
    for (int b = 0; b < B; b++) {
        memset(keys + (b * (N + 1) + N) * H * D, 0, H * D * sizeof *keys);
        memset(values + (b * (N + 1) + N) * H * M, 0, H * M * sizeof *values);
    }
    key = tape_input(tape, keys, key->shape);
    value = tape_input(tape, values, value->shape);
    Tensor *out = op_causal_softmax_attention(
        tape, query, first_keys, first,
        (SoftmaxAttentionOptions){ .sink_logits = tape_input(tape, logits, shape(H)) });
    Tensor *expected = op_softmax_attention(
        tape, query, key, value,
        (SoftmaxAttentionOptions){ .mask = tape_input(tape, mask, shape(1, H, N, N + 1)) });
    assert_close(test_values(out), test_values(expected), B * N * H * M, VECTOR_TOLERANCE);
    tape_free(tape);
}

/* -infinity: no sink. A large logit: the sink alone. More keys than a block's: the sink counts
 * once. */
TEST(sink_logits_may_be_extreme)
{
    enum { N = 4200, H = 3 };
    Tape *tape = tape_new(test_device());
    const int64_t count = device_is_cuda(test_device()) ? 200 : N;
    static const Real logits[H] = { -(Real)INFINITY, 200, 3 };
    Tensor *query = tape_input(tape, test_zeros(count * H), shape(1, count, H, 1));
    Tensor *ones = op_exp(tape, query), *sinks = tape_variable(tape, logits, shape(H));
    Tensor *out = op_causal_softmax_attention(tape, query, query, ones,
                                              (SoftmaxAttentionOptions){ .sink_logits = sinks });
    const Real *values = test_values(out);
    for (int64_t i = 0; i < count; i++) { /* (i + 1) / (i + 1 + e^logit) */
        ck_assert_double_eq_tol(values[i * H], 1, 1e-5);
        ck_assert_double_eq_tol(values[i * H + 1], 0, 1e-5);
        ck_assert_double_eq_tol(values[i * H + 2], (double)(i + 1) / ((double)(i + 1) + exp(3)),
                                1e-5);
    }
    tape_backward(tape, op_sum(tape, out, ALL_AXES));
    const Real *d = test_values(tensor_gradient(sinks));
    double expected = 0; /* -sum_i p_i out_i */
    for (int64_t i = 0; i < count; i++)
        expected -= exp(3) * (double)(i + 1) / pow((double)(i + 1) + exp(3), 2);
    ck_assert(d[0] == 0);
    ck_assert_double_eq_tol(d[1], 0, 1e-5);
    ck_assert_double_eq_tol(d[2] / expected, 1, 1e-4);
    tape_free(tape);
}

TEST(misuse_of_sink_logits_raises)
{
    Tape *tape = tape_new(test_device());
    Real *values = test_zeros(2 * 4 * 3 * 2);
    Tensor *query = tape_input(tape, values, shape(2, 4, 3, 2));
    assert_raises(
        "op_causal_softmax_attention: sink_logits is [2], expected [3]: one number per "
        "head",
        op_causal_softmax_attention(
            tape, query, query, query,
            (SoftmaxAttentionOptions){ .sink_logits = tape_input(tape, values, shape(2)) }));
    assert_raises(
        "op_softmax_attention: sink_logits has dtype int32, expected Real",
        op_softmax_attention(tape, query, query, query,
                             (SoftmaxAttentionOptions){ .sink_logits = tape_input_i32(
                                                            tape, (int32_t[3]){ 0 }, shape(3)) }));
    tape_free(tape);
}

TEST(misuse_of_masks_raises)
{
    Tape *tape = tape_new(test_device()), *other = tape_new(test_device());
    Real *values = test_zeros(3 * 3 * 4 * 5);
    Tensor *query = tape_input(tape, values, shape(2, 4, 3, 2));
    Tensor *key = tape_input(tape, values, shape(2, 5, 3, 2));
#define WITH_MASK(tensor) ((SoftmaxAttentionOptions){ .mask = (tensor) })
    const Shape wrong[] = { shape(5, 4),       shape(2, 4, 5),    shape(2, 2, 4, 5),
                            shape(3, 3, 4, 5), shape(2, 3, 4, 4), shape(2, 3, 1, 5) };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char sentence[200];
        snprintf(
            sentence, sizeof sentence,
            "op_softmax_attention: mask is %s, expected [4,5], or [2,3,4,5] where 1 may replace "
            "the first two sizes",
            shape_text(wrong[i]).text);
        assert_raises(sentence,
                      op_softmax_attention(tape, query, key, key,
                                           WITH_MASK(tape_input(tape, values, wrong[i]))));
    }
    assert_raises(
        "op_causal_softmax_attention: mask requires a gradient, and the operation computes "
        "none for it",
        op_causal_softmax_attention(tape, query, query, query,
                                    WITH_MASK(tape_variable(tape, values, shape(4, 4)))));
    assert_raises("op_softmax_attention: mask has dtype int32, expected Real",
                  op_softmax_attention(
                      tape, query, key, key,
                      WITH_MASK(tape_input_i32(tape, (const int32_t *)values, shape(4, 5)))));
    assert_raises("op_softmax_attention: mask belongs to another tape",
                  op_softmax_attention(tape, query, key, key,
                                       WITH_MASK(tape_input(other, values, shape(4, 5)))));
    tape_free(other);
    tape_free(tape);
}

/* ---------------------------------------------------------------------------------------- decay */
/* The outcome with a log decay [B, N, H], or with a mask: exactly one is given. */
typedef struct Decay {
    const int32_t *lengths;
    const Real *log_decay, *mask; /* mask: [1, H, N, N] */
} Decay;

static Tensor *decaying(Tape *tape, Tensor *const *in, void *context)
{
    const Decay *d = context;
    const int64_t *size = in[0]->shape.size, B = size[0], N = size[1], H = size[2];
    SoftmaxAttentionOptions options = { 0 };
    if (d->lengths)
        options.key_lengths = tape_input_i32(tape, d->lengths, shape(B));
    if (d->log_decay)
        options.log_decay = tape_input(tape, d->log_decay, shape(B, N, H));
    if (d->mask)
        options.mask = tape_input(tape, d->mask, shape(1, H, N, N));
    return op_causal_softmax_attention(tape, in[0], in[1], in[2], options);
}

static Outcome decayed(const char *device, const Case *c, Decay d)
{
    const Arrays x = arrays_for(c);
    const CheckInput inputs[] = { { shape(c->B, c->N, c->H, c->D), x.query },
                                  { shape(c->B, c->N, c->H, c->D), x.key },
                                  { shape(c->B, c->N, c->H, c->M), x.value } };
    return test_outcome(device, 0, decaying, &d, inputs, 3);
}

/* -scale times a number in [0, 1) per position and head, multiples of 1 / 1024 */
static Real *log_decays(int64_t count, double scale)
{
    Real *log_decay = test_zeros(count);
    Random random = random_new(11, 3);
    random_uniform(&random, log_decay, count);
    for (int64_t i = 0; i < count; i++)
        log_decay[i] = (Real)(-floor((double)log_decay[i] * 1024) / 1024 * scale);
    return log_decay;
}

TEST(a_log_decay_of_0_changes_nothing)
{
    const int32_t lengths[] = { 3, 70 };
    const Case c = { 2, 130, 130, 2, 6, 10, .factor = 1 };
    for (int padded = 0; padded < 2; padded++) {
        const Outcome without = decayed(NULL, &c, (Decay){ padded ? lengths : NULL, NULL, NULL });
        const Outcome with =
            decayed(NULL, &c, (Decay){ padded ? lengths : NULL, test_zeros(2 * 130 * 2), NULL });
        assert_outcomes_near("log decays of 0", &with, &without, 1e-7);
    }
}

/* The mask holds the sums of the log decays between key and query. */
TEST(a_decay_equals_a_mask_of_its_sums)
{
    enum { N = 150, H = 2 };
    const Case c = { 1, N, N, H, 6, 10, .factor = 1 };
    const Real *log_decay = log_decays(N * H, 0.25);
    Real *mask = test_zeros(H * N * N);
    for (int h = 0; h < H; h++)
        for (int i = 0; i < N; i++) {
            double sum = 0;
            for (int j = i; j >= 0; sum += (double)log_decay[j-- * H + h])
                mask[(h * N + i) * N + j] = (Real)sum;
        }
    const Outcome y = decayed(NULL, &c, (Decay){ NULL, log_decay, NULL });
    const Outcome expected = decayed(NULL, &c, (Decay){ NULL, NULL, mask });
    assert_outcomes_near("a decay", &y, &expected, VECTOR_TOLERANCE);
}

/* The log decays of the first position, and one far before the keys that matter, add up to 10^5 and
 * more: results equal those where they are small. */
TEST(large_sums_of_log_decays_stay_exact)
{
    enum { N = 300, H = 2 };
    const Case c = { 1, N, N, H, 6, 10, .factor = 1 };
    Real *log_decay = log_decays(N * H, 0.25), *large = test_zeros(N * H);
    for (int h = 0; h < H; h++)
        log_decay[20 * H + h] = -1000; /* positions from here on do not attend to earlier ones */
    memcpy(large, log_decay, N * H * sizeof *large);
    for (int i = 0; i < 21 * H; i++)
        large[i] = i < H ? -123456 : i < 20 * H ? large[i] : -9999;
    const Outcome y = decayed(NULL, &c, (Decay){ NULL, large, NULL });
    const Outcome expected = decayed(NULL, &c, (Decay){ NULL, log_decay, NULL });
    assert_outcomes_near("large sums", &y, &expected, 1e-7);
    const Outcome plain = decayed("plain", &c, (Decay){ NULL, large, NULL });
    assert_outcomes_near("large sums", &y, &plain, VECTOR_TOLERANCE);
}

/* Every position decays by 300, or alternately by 300 and 2^-9: few keys have a weight above 0. */
TEST(sums_of_log_decays_over_long_sequences_stay_exact)
{
    const int64_t N = device_is_cuda(test_device()) ? 400 : 3000;
    const Case c = { 1, N, N, 1, 4, 4, .factor = 1 };
    for (int64_t period = 1; period <= 50; period += 7) {
        Real *log_decay = test_zeros(N);
        for (int64_t i = 0; i < N; i++)
            log_decay[i] = i % period ? -(Real)0x1p-9 : -300;
        const Outcome y = decayed(NULL, &c, (Decay){ NULL, log_decay, NULL });
        const Outcome plain = decayed("plain", &c, (Decay){ NULL, log_decay, NULL });
        assert_outcomes_near("long sequences", &y, &plain, VECTOR_TOLERANCE);
    }
}

/* A log decay of -infinity begins a sequence: nothing before it is attended to. */
TEST(a_log_decay_of_minus_infinity_begins_a_sequence)
{
    enum { N = 140, CUT = 70, H = 1, D = 4 };
    const Case c = { 1, N, N, H, D, D, .factor = 1 };
    Real *log_decay = log_decays(N * H, 0.25), *mask = test_zeros(N * N);
    log_decay[CUT] = -(Real)INFINITY;
    for (int i = 0; i < N; i++) {
        double sum = 0;
        for (int j = i; j >= 0; sum += (double)log_decay[j--])
            mask[i * N + j] = (Real)sum;
    }
    for (int of_plain = 0; of_plain < 2; of_plain++) {
        const char *device = of_plain ? "plain" : NULL;
        const Outcome y = decayed(device, &c, (Decay){ NULL, log_decay, NULL });
        const Outcome expected = decayed(device, &c, (Decay){ NULL, NULL, mask });
        assert_outcomes_near("-infinity", &y, &expected, VECTOR_TOLERANCE);
    }
}

TEST(misuse_of_log_decays_raises)
{
    Tape *tape = tape_new(test_device());
    Real *values = test_zeros(2 * 4 * 3 * 2);
    Tensor *query = tape_input(tape, values, shape(2, 4, 3, 2));
    Tensor *packed = tape_input(tape, values, shape(2, 2, 6, 2));
    assert_raises("op_softmax_attention: log_decay is given, expected NULL without a causal mask; "
                  "op_causal_softmax_attention has a decay",
                  op_softmax_attention(tape, query, query, query,
                                       with_decay(tape_input(tape, values, shape(2, 4, 3)))));
    assert_raises(
        "op_causal_softmax_attention: log_decay is [2,3,4], expected [2,4,3]: one per "
        "position and head",
        op_causal_softmax_attention(tape, query, query, query,
                                    with_decay(tape_input(tape, values, shape(2, 3, 4)))));
    assert_raises(
        "op_causal_softmax_attention: log_decay is [2,2,6], expected [2,2,2]: one per "
        "position and head",
        op_causal_softmax_attention(tape, packed, NULL, NULL,
                                    with_decay(tape_input(tape, values, shape(2, 2, 6)))));
    assert_raises("op_causal_softmax_attention: log_decay has dtype int32, expected Real",
                  op_causal_softmax_attention(
                      tape, query, query, query,
                      with_decay(tape_input_i32(tape, (int32_t *)values, shape(2, 4, 3)))));
    values[17] = (Real)0.5;
    Tensor *growing = tape_input(tape, values, shape(2, 4, 3));
    if (!device_is_cuda(test_device()))
        assert_raises("op_causal_softmax_attention: log_decay[17] is 0.5, expected 0 or less",
                      op_causal_softmax_attention(tape, query, query, query, with_decay(growing)));
    else /* position 1 of sequence 1, head 2: NaN from there on */
        for (int row = 0; row < 24; row++)
            ck_assert_int_eq(row_has_nan(test_values(op_causal_softmax_attention(
                                             tape, query, query, query, with_decay(growing))),
                                         row, 2),
                             row >= 17 && row % 3 == 2);
    tape_free(tape);
}

/* ------------------------------------------------------------------------------- extreme values */
/* Scores of some thousands: the exponentials neither overflow nor all underflow. A score of
 * magnitude S has an error of S eps, and so has the exponent of a probability. */
TEST(large_scores)
{
    double tolerance = sizeof(Real) == sizeof(float) ? 1e-2 : 1e-9;
    for (int causal = 0; causal < 2; causal++)
        check_case((Case){ 1, 140, 140, 2, 8, 8, causal, .factor = 1000 }, tolerance);
}

/* Every later tile has larger scores than all tiles before it, or smaller ones. */
TEST(rising_and_falling_scores)
{
    for (int falling = 0; falling < 2; falling++) {
        Case c = { 1, 200, 200, 1, 1, 4, false, .factor = 1 };
        Arrays x = arrays_for(&c);
        for (int64_t j = 0; j < c.keys; j++)
            x.key[j] = (Real)(falling ? -j : j) / 8;
        for (int64_t i = 0; i < c.N; i++)
            x.query[i] = 1 + (Real)(i % 5);
        check_arrays(&c, &x, 20 * VECTOR_TOLERANCE);
    }
}

/* A NaN of a query appears in its row, a NaN of a key in all rows that attend to it. */
TEST(nan_reaches_the_rows_that_attend_to_it)
{
    enum { N = 100, AT = 70 };
    Case c = { 1, N, N, 1, 3, 2, true, .factor = 1 };
    Arrays x = arrays_for(&c);
    Real before = x.query[AT * 3];
    x.query[AT * 3] = (Real)NAN;
    Outcome y = computed(NULL, &c, &x);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(row_has_nan(y.values[OUT], i, 2), i == AT);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(row_has_nan(y.values[DQUERY], i, 3), i == AT);
    x.query[AT * 3] = before;
    x.key[AT * 3] = (Real)NAN;
    y = computed(NULL, &c, &x);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(row_has_nan(y.values[OUT], i, 2), i >= AT);
    c.causal = false;
    y = computed(NULL, &c, &x);
    for (int i = 0; i < N; i++)
        ck_assert(row_has_nan(y.values[OUT], i, 2));
    if (device_is_cuda(test_device()))
        return; /* there a tile's product multiplies a later NaN by the weight 0 */
    x = arrays_for(&c);
    c.causal = true;
    x.value[AT * 2] = (Real)NAN;
    y = computed(NULL, &c, &x);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(row_has_nan(y.values[OUT], i, 2), i >= AT);
    for (int i = 0; i < AT; i++)
        ck_assert(!row_has_nan(y.values[DQUERY], i, 3));
}

/* A NaN of a query appears in the gradients of the keys and values that it attends to, and in no
 * others; on CUDA a tile's product multiplies it by the weight 0. */
TEST(nan_of_a_query_reaches_the_keys_that_it_attends_to)
{
    enum { N = 100, AT = 70 };
    static const int64_t windows[] = { 0, 5, 33, 64 };
    for (int w = 0; w < 4 && !device_is_cuda(test_device()); w++) {
        Case c = { 1, N, N, 1, 3, 2, true, .factor = 1, .window = windows[w] };
        const Arrays x = arrays_for(&c);
        x.query[AT * 3] = (Real)NAN;
        const Outcome y = computed(NULL, &c, &x);
        for (int j = 0; j < N; j++) {
            const bool visible = j <= AT && (c.window == 0 || j > AT - c.window);
            ck_assert_int_eq(row_has_nan(y.values[DKEY], j, 3), visible);
            ck_assert_int_eq(row_has_nan(y.values[DVALUE], j, 2), visible);
        }
    }
}

/* --------------------------------------------------------------------------- threads and memory */
/* Threads divide one head's gradients, which three inputs contribute to. With a window, one thread
 * contributes a key's as soon as no later query attends to it; several first add up theirs. */
TEST(one_tensor_for_three_inputs_with_any_number_of_threads)
{
    enum { N = 1000, CASES = 3 };
    static const int64_t windows[CASES] = { 0, 0, 30 };
    Tape *tape = tape_new(test_device());
    Real *values = test_normal(7, N), *results[2][CASES];
    for (int several = 0; several < 2; several++) {
        test_set_threads(several ? 5 : 1);
        for (int i = 0; i < CASES; i++) {
            const SoftmaxAttentionOptions options = { .window = windows[i] };
            Tensor *all = tape_variable(tape, values, shape(1, N, 1, 1));
            Tensor *out = softmax_attention(tape, all, all, all, options, i > 0);
            tape_backward_from(tape, out, tape_input(tape, values, out->shape));
            results[several][i] = test_values(tensor_gradient(all));
            tape_reset(tape);
        }
    }
    for (int i = 0; i < CASES; i++)
        assert_close(results[1][i], results[0][i], N, VECTOR_TOLERANCE);
    tape_free(tape);
}

static size_t peak_bytes(int64_t N, int64_t H, bool backward)
{
    Device *device = test_device();
    Tape *tape = tape_new(device);
    device_reset_peak(device);
    size_t before = device_memory(device).current;
    Real *values = test_normal(1, N * H * 8);
    Tensor *all = tape_variable(tape, values, shape(1, N, H, 8));
    Tensor *out = op_causal_softmax_attention(tape, all, all, all, none);
    if (backward)
        tape_backward_from(tape, out, tape_input(tape, values, out->shape));
    size_t peak = device_memory(device).peak - before;
    tape_free(tape);
    return peak;
}

/* One query and very many keys, whose scores rise and fall: out is a mean of the values. Errors are
 * relative to the sum of the magnitudes of the terms. Where a key is its value dquery is their
 * variance, and few terms cancel. */
static void check_many_keys(const Real *key, const Real *value, int64_t count)
{
    const Real q = 1;
    double sum = 0, out = 0, out_terms = 0, dquery = 0, dquery_terms = 0;
    for (int64_t j = 0; j < count; j++) {
        const double power = exp((double)key[j]);
        sum += power;
        out += power * (double)value[j];
        out_terms += power * fabs((double)value[j]);
    }
    out /= sum;
    for (int64_t j = 0; j < count; j++) {
        const double term = exp((double)key[j]) / sum * ((double)value[j] - out) * (double)key[j];
        dquery += term;
        dquery_terms += fabs(term);
    }
    Tape *tape = tape_new(device_open("cpu"));
    Tensor *query = tape_variable(tape, &q, shape(1, 1, 1, 1));
    Tensor *result = op_softmax_attention(tape, query, tape_input(tape, key, shape(1, count, 1, 1)),
                                          tape_input(tape, value, shape(1, count, 1, 1)), none);
    tape_backward(tape, result);
    ck_assert_double_le(fabs((double)test_values(result)[0] - out), 5e-7 * out_terms / sum);
    ck_assert_double_le(fabs((double)test_values(tensor_gradient(query))[0] - dquery),
                        1e-6 * dquery_terms);
    tape_free(tape);
}

TEST(sums_over_many_keys_stay_accurate)
{
    enum { KEYS = 1 << 18 };
    Real *key = test_zeros(KEYS), *value = test_zeros(KEYS);
    Random random = random_new(5, 0);
    random_uniform(&random, key, KEYS);
    random_uniform(&random, value, KEYS);
    for (int j = 0; j < KEYS; j++)
        key[j] += (Real)sin(4.0 * j / KEYS);
    check_many_keys(key, value, KEYS);
    for (int j = 0; j < KEYS; j++)
        key[j] -= 1;
    check_many_keys(key, key, KEYS);
}

TEST(memory_grows_linearly)
{
    test_set_threads(2);
    for (int backward = 0; backward < 2; backward++) {
        size_t one = peak_bytes(1024, 4, backward), four = peak_bytes(4096, 4, backward);
        ck_assert_msg(four <= 4 * one, "%zu bytes for 1024 positions, %zu for 4096", one, four);
    }
}

/* --------------------------------------------------------------------------------------- misuse */
TEST(misuse_raises)
{
    Tape *tape = tape_new(test_device());
    Real *values = test_normal(1, 2 * 4 * 6 * 3);
    const int32_t integers[] = { 1, 4, 0, 5, 1, 1 };
    Tensor *query = tape_input(tape, values, shape(2, 4, 3, 2));
    Tensor *five = tape_input(tape, values, shape(2, 5, 3, 2));
    Tensor *wide = tape_input(tape, values, shape(2, 4, 3, 3));
    Tensor *flat = tape_input(tape, values, shape(2, 4, 6));
    Tensor *four_heads = tape_input(tape, values, shape(2, 4, 4, 2));
    Tensor *lengths = tape_input_i32(tape, integers, shape(2));
    assert_raises("op_softmax_attention: query is NULL",
                  op_softmax_attention(tape, NULL, query, query, none));
    assert_raises("op_softmax_attention: query has dtype int32, expected Real",
                  op_softmax_attention(tape, lengths, query, query, none));
    assert_raises("op_softmax_attention: query is [2,4,6], expected four axes, [B, N, H, D]",
                  op_softmax_attention(tape, flat, query, query, none));
    assert_raises("op_softmax_attention: key is NULL; give both key and value, or neither when "
                  "query holds all three",
                  op_softmax_attention(tape, query, NULL, query, none));
    assert_raises("op_softmax_attention: value is NULL; give both key and value, or neither when "
                  "query holds all three",
                  op_softmax_attention(tape, query, query, NULL, none));
    assert_raises("op_softmax_attention: query without key and value must hold all three, "
                  "[B, N, 3 H, D], but is [2,4,4,2]: its third size is no multiple of 3",
                  op_softmax_attention(tape, four_heads, NULL, NULL, none));
    assert_raises("op_softmax_attention: key is [2,4,3,3], expected [B, N, H, D] with the B, H, D "
                  "of query, [2,4,3,2]",
                  op_softmax_attention(tape, query, wide, query, none));
    assert_raises("op_causal_softmax_attention: key is [2,5,3,2], expected the same number of "
                  "positions as query, [2,4,3,2]",
                  op_causal_softmax_attention(tape, query, five, five, none));
    assert_raises("op_softmax_attention: value is [2,4,3,2], expected [B, N, H, M] with the B, N, "
                  "H of key, [2,5,3,2]",
                  op_softmax_attention(tape, query, five, query, none));
    tape_free(tape);
}

TEST(misuse_of_key_lengths_raises)
{
    Tape *tape = tape_new(test_device());
    Real *values = test_normal(1, 2 * 4 * 3 * 2);
    const int32_t integers[] = { 1, 4, 3, 0, 5, 1 };
    Tensor *query = tape_input(tape, values, shape(2, 4, 3, 2));
    assert_raises("op_softmax_attention: key_lengths has dtype Real, expected int32",
                  op_softmax_attention(tape, query, query, query, with_lengths(query)));
    assert_raises("op_softmax_attention: key_lengths is [3], expected [2]: one per sequence",
                  op_softmax_attention(tape, query, query, query,
                                       with_lengths(tape_input_i32(tape, integers, shape(3)))));
    assert_raises("op_softmax_attention: key_lengths[1] is 0, expected 1 to 4, the number of keys",
                  op_softmax_attention(tape, query, query, query,
                                       with_lengths(tape_input_i32(tape, integers + 2, shape(2)))));
    assert_raises("op_softmax_attention: key_lengths[0] is 5, expected 1 to 4, the number of keys",
                  op_softmax_attention(tape, query, query, query,
                                       with_lengths(tape_input_i32(tape, integers + 4, shape(2)))));
    tape_free(tape);
}

int main(void)
{
    return test_main("softmax_attention", NULL, NULL);
}
