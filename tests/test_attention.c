/* Linear attention, causal and not, against the plain kernels and finite differences. */
#include "tests/attention_oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double eps = 1e-6;

static CausalLinearAttentionOptions with_eps(double value)
{
    return (CausalLinearAttentionOptions){ .eps = value };
}

static LinearAttentionOptions linear_with_eps(double value)
{
    return (LinearAttentionOptions){ .eps = value };
}

static LinearAttentionOptions with_lengths(Tensor *key_lengths)
{
    return (LinearAttentionOptions){ .eps = eps, .key_lengths = key_lengths };
}

/* Sizes below, at and above the kernels' blocks of positions, columns and heads; enough heads that
 * a GPU processes each one whole, and fewer, which it splits into segments; heads whose state
 * exceeds shared memory; and more segments. */
TEST(causal_matches_plain)
{
    static const int64_t sizes[][5] = {
        /* B, N, H, D, M */
        { 1, 2, 1, 1, 1 },       { 2, 15, 1, 3, 5 },    { 1, 16, 2, 8, 8 },
        { 2, 17, 9, 16, 16 },    { 1, 70, 1, 130, 7 },  { 1, 33, 3, 7, 130 },
        { 3, 40, 2, 32, 32 },    { 1, 100, 4, 64, 64 }, { 1, 31, 11, 24, 40 },
        { 2, 64, 2, 48, 16 },    { 1, 300, 1, 33, 31 }, { 12, 150, 11, 8, 8 },
        { 5, 450, 6, 5, 3 },     { 2, 330, 26, 4, 36 }, { 1, 600, 1, 64, 64 },
        { 1, 200, 1, 130, 140 }, { 1, 130, 2, 7, 270 },
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t *s = sizes[i];
        assert_plain((Case){ s[0], s[1], s[1], s[2], s[3], s[4], true, false, .eps = 0.5 });
        if (s[3] > 1) /* else |q| cancels, and its gradient comes from eps alone */
            assert_plain((Case){ s[0], s[1], s[1], s[2], s[3], s[4], true, false, .eps = 1e-6 });
    }
}

TEST(noncausal_matches_plain)
{
    static const int64_t sizes[][6] = {
        /* B, N, keys, H, D, M */
        { 1, 1, 1, 1, 1, 1 },         { 2, 15, 4, 1, 3, 5 },      { 1, 16, 30, 2, 8, 8 },
        { 2, 17, 17, 9, 16, 16 },     { 1, 3, 70, 1, 130, 7 },    { 4, 33, 20, 3, 7, 130 },
        { 12, 70, 140, 11, 8, 8 },    { 1, 600, 580, 1, 64, 64 }, { 5, 300, 450, 6, 5, 3 },
        { 1, 100, 200, 1, 130, 140 },
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t *s = sizes[i];
        /* With one key |q| cancels, and its gradient comes from eps alone: use a larger eps. */
        assert_plain((Case){ s[0], s[1], s[2], s[3], s[4], s[5], false, false, .eps = 0.5 });
        assert_plain((Case){ s[0], s[1], s[2], s[3], s[4], s[5], false, true, .eps = 0.5 });
    }
}

/* ------------------------------------------------------------------------------------ the rules */

/* Attention of any kind; x[1] and x[2] are NULL if x[0] holds query, key and value. */
static Tensor *attend_by(int kind, Tensor **x)
{
    Tensor *lengths = tape_input_i32(tape, (int32_t[]){ 40, 75 }, shape(2));
    switch (kind) {
    case 0:
        return op_causal_linear_attention(tape, x[0], x[1], x[2], with_eps(eps), NULL);
    case 1:
        return op_linear_attention(tape, x[0], x[1], x[2], with_lengths(lengths));
    case 2:
        return op_causal_softmax_attention(tape, x[0], x[1], x[2], (SoftmaxAttentionOptions){ 0 });
    default:
        return op_softmax_attention(tape, x[0], x[1], x[2],
                                    (SoftmaxAttentionOptions){ .key_lengths = lengths });
    }
}

TEST(packed_equals_separate)
{
    enum { H = 3 };
    for (int i = 0; i < 8; i++) {
        const Shape of = shape(2, 75, 3 * H, i % 2 ? 20 : 32);
        Outcome outcomes[2] = { 0 };
        for (int packed = 0; packed < 2; packed++) {
            Tensor *all = tape_variable(tape, test_normal(1, shape_count(of)), of);
            Tensor *x[3] = { all, NULL, NULL };
            for (int part = 0; part < 3 && !packed; part++)
                x[part] = op_slice(tape, all, 2, part * H, H);
            Tensor *out = tensor_keep(attend_by(i / 2, x));
            const Real *upstream = test_normal(TEST_UPSTREAM, tensor_count(out));
            tape_backward_from(tape, out, tape_input(tape, upstream, out->shape));
            test_note(&outcomes[packed], out);
            test_note(&outcomes[packed], tensor_gradient(all));
            tape_reset(tape);
        }
        assert_outcomes_near("packed", &outcomes[1], &outcomes[0], 0);
    }
}

/* No position attends to later ones: changing the last 20 leaves the bits of the earlier ones. */
TEST(causality)
{
    Case c = { 1, 60, 60, 2, 12, 12, true, false, .eps = 1e-6 };
    Values before = inputs(&c), after = before;
    compute(&c, &before);
    after.query = test_values(tape_input(tape, before.query, shape(queries_of(&c))));
    after.key = test_values(tape_input(tape, before.key, shape(keys_of(&c))));
    after.value = test_values(tape_input(tape, before.value, shape(values_of(&c))));
    const int64_t start = 40 * c.H * c.D;
    for (int64_t i = start; i < queries_of(&c); i++) {
        after.query[i] += 1;
        after.key[i] -= 2;
        after.value[i] *= 3;
    }
    compute(&c, &after);
    ck_assert_mem_eq(after.out, before.out, (size_t)start * sizeof(Real));
    for (int64_t i = start; i < outs_of(&c); i++)
        ck_assert(after.out[i] != before.out[i]);
}

/* Keys past a sequence's length have no effect, whatever they hold, and get gradients of 0. */
static void assert_masked_keys_have_no_effect(Case c)
{
    Values expected = inputs(&c), masked = expected;
    compute(&c, &expected);
    masked.key = test_values(tape_input(tape, expected.key, shape(keys_of(&c))));
    masked.value = test_values(tape_input(tape, expected.value, shape(values_of(&c))));
    for (int64_t b = 0; b < c.B; b++)
        for (int64_t j = key_count(&c, b); j < c.keys; j++) {
            masked.key[at(&c, b, c.keys, j, 0, c.D)] = NAN;
            masked.value[at(&c, b, c.keys, j, 0, c.M)] = INFINITY;
        }
    compute(&c, &masked);
    ck_assert_mem_eq(masked.out, expected.out, (size_t)outs_of(&c) * sizeof(Real));
    ck_assert_mem_eq(masked.dkey, expected.dkey, (size_t)keys_of(&c) * sizeof(Real));
    ck_assert_mem_eq(masked.dvalue, expected.dvalue, (size_t)values_of(&c) * sizeof(Real));
    for (int64_t b = 0; b < c.B; b++)
        for (int64_t j = key_count(&c, b); j < c.keys; j++) {
            for (int64_t d = 0; d < c.D; d++)
                ck_assert(masked.dkey[at(&c, b, c.keys, j, 0, c.D) + d] == 0);
            for (int64_t m = 0; m < c.M; m++)
                ck_assert(masked.dvalue[at(&c, b, c.keys, j, 0, c.M) + m] == 0);
        }
}

TEST(masked_keys_have_no_effect)
{
    assert_masked_keys_have_no_effect((Case){ 2, 6, 10, 1, 3, 4, false, true, .eps = 1e-6 });
    for (AttentionForm form = FORM_BEST; form <= FORM_QUADRATIC; form++)
        assert_masked_keys_have_no_effect((Case){ 3, 40, 40, 1, 3, 4, true, true, .eps = 1e-6,
                                                  .form = form, .state = true, .used = BOTH });
}

/* A NaN at position 20 of one head reaches the head's later positions, and no others. */
TEST(nan_reaches_later_positions_of_its_head)
{
    Case c = { 1, 40, 40, 2, 5, 5, true, false, .eps = 1e-6 };
    Values v = inputs(&c);
    v.key[at(&c, 0, c.N, 20, 1, c.D) + 2] = NAN;
    compute(&c, &v);
    for (int64_t i = 0; i < c.N; i++)
        for (int64_t h = 0; h < c.H; h++)
            for (int64_t m = 0; m < c.M; m++)
                ck_assert_int_eq(isnan(v.out[at(&c, 0, c.N, i, h, c.M) + m]) != 0,
                                 h == 1 && i >= 20);
    ck_assert(isnan(v.dkey[at(&c, 0, c.N, 20, 1, c.D) + 2]));
    v = inputs(&c);
    v.query[at(&c, 0, c.N, 20, 0, c.D)] = NAN;
    compute(&c, &v);
    for (int64_t i = 0; i < c.N; i++)
        ck_assert_int_eq(isnan(v.out[at(&c, 0, c.N, i, 0, c.M)]) != 0, i == 20);
    ck_assert(isnan(v.dquery[at(&c, 0, c.N, 20, 0, c.D)]));
}

static double exact_phi(FeatureMap features, double x)
{
    switch (features) {
    case FEATURE_MAP_RELU:
        return x > 0 ? x : 0;
    case FEATURE_MAP_SOFTPLUS:
        return fmax(x, 0) + log1p(exp(-fabs(x)));
    case FEATURE_MAP_IDENTITY:
        return x;
    default:
        return x > 0 ? x + 1 : exp(x);
    }
}

/* The feature maps over their whole range: a single position has the weight p = phi(q) phi(k), so
 * with eps = 1 and the value 1, out = p / (p + 1). */
static void assert_map(FeatureMap features, double allowed)
{
    const Real one = 1;
    const bool falls = features == FEATURE_MAP_ELU_PLUS_ONE || features == FEATURE_MAP_SOFTPLUS;
    for (double x = -80; x < 80; x += 0.37) {
        const Real query = (Real)x, key = falls ? -query : query;
        Shape single = shape(1, 1, 1, 1);
        Tensor *q = tape_input(tape, &query, single), *k = tape_input(tape, &key, single);
        Tensor *v = tape_input(tape, &one, single);
        double p = exact_phi(features, query) * exact_phi(features, key), expected = p / (p + 1);
        double causal_out = tensor_item(op_causal_linear_attention(
            tape, q, k, v, (CausalLinearAttentionOptions){ .features = features, .eps = 1 }, NULL));
        double linear_out = tensor_item(op_linear_attention(
            tape, q, k, v, (LinearAttentionOptions){ .features = features, .eps = 1 }));
        ck_assert_double_le(fabs(causal_out - expected), allowed * expected + 1e-38);
        ck_assert_double_le(fabs(linear_out - expected), allowed * expected + 1e-38);
        tape_reset(tape);
    }
}

TEST(the_map_is_exact)
{
    for (FeatureMap f = FEATURE_MAP_ELU_PLUS_ONE; f <= FEATURE_MAP_IDENTITY; f++)
        assert_map(f, sizeof(Real) == sizeof(float) ? 6e-7 : 1e-14);
}

/* With a negligible eps the first position's result is its value. */
TEST(eps_may_be_tiny)
{
    Case c = { 1, 8, 8, 1, 4, 4, true, false, .eps = 1e-30 };
    Values v = inputs(&c);
    compute(&c, &v);
    assert_close(v.out, v.value, 4, in_three_products(c.causal) ? 1e-5 : 1e-6);
}

/* Products of e^-40 vanish beside any usual eps. */
TEST(an_eps_of_0_adds_nothing)
{
    const Real small = -20, value = 3;
    for (double added = 0; added < 2e-6; added += 1e-6) {
        const double expected = added > 0 ? 0 : 3;
        Tensor *x = tape_input(tape, &small, shape(1, 1, 1, 1));
        Tensor *v = tape_input(tape, &value, shape(1, 1, 1, 1));
        Tensor *causal_out = op_causal_linear_attention(tape, x, x, v, with_eps(added), NULL);
        Tensor *linear_out = op_linear_attention(tape, x, x, v, linear_with_eps(added));
        ck_assert_double_le(fabs(tensor_item(causal_out) - expected), 1e-5);
        ck_assert_double_le(fabs(tensor_item(linear_out) - expected), 1e-5);
        tape_reset(tape);
    }
}

/* Only out and one value per position and head are saved for the backward pass. */
TEST(memory_is_linear)
{
    Device *device = test_device();
    for (int64_t N = 64; N <= 1024; N *= 4) {
        Case c = { 1, N, N, 2, 16, 16, true, false, .eps = 1e-6 };
        Values v = inputs(&c);
        Tensor *query = tape_variable(tape, v.query, shape(1, N, 2, 16));
        Tensor *key = tape_variable(tape, v.key, shape(1, N, 2, 16));
        Tensor *value = tape_variable(tape, v.value, shape(1, N, 2, 16));
        size_t before = device_memory(device).current;
        attend(&c, query, key, value);
        size_t kept = device_memory(device).current - before;
        size_t required = (size_t)(outs_of(&c) + N * 2) * sizeof(Real);
        /* the allocator rounds up by at most an eighth */
        ck_assert_uint_ge(kept, required);
        ck_assert_uint_le(kept, required + required / 8);
        tape_reset(tape);
    }
}

/* Memory of the CPU backend beside inputs, results and gradients: one saved value per position and
 * head; for D = 32 half of that for the states at segment boundaries; and little that
 * does not grow with N. */
TEST(scratch_memory_is_small)
{
    Device *device = test_device();
    if (device_is_cuda(device) || strcmp(device_name(device), "plain") == 0)
        return;
    test_set_threads(2);
    for (int64_t N = 2048; N <= 32768; N *= 4) {
        const Case c = { 1, N, N, 2, 32, 32, true, false, .eps = 1e-6 };
        const Shape x = shape(1, N, 2, 32);
        const Values v = inputs(&c);
        Tensor *query = tape_variable(tape, v.query, x), *key = tape_variable(tape, v.key, x);
        Tensor *value = tape_variable(tape, v.value, x), *upstream = tape_input(tape, v.dout, x);
        const size_t before = device_memory(device).current;
        device_reset_peak(device);
        tape_backward_from(tape, attend(&c, query, key, value), upstream);
        const size_t results = 4 * (size_t)outs_of(&c) * sizeof(Real);
        const size_t beside = device_memory(device).peak - before - results;
        const size_t required = (size_t)(N * 2 * 8 / 5 + (1 << 15)) * sizeof(Real);
        ck_assert_uint_le(beside, required + required / 8); /* the allocator rounds up */
        tape_reset(tape);
    }
}

/* ------------------------------------------------------------------------------ long sequences */

enum { LONG_N = 65536, LONG_D = 32 };

static double elu_plus_one(double x)
{
    return x > 0 ? x + 1 : exp(x);
}

/* out[i] = S_i^T a_i / den_i of one head [N, D], in double; S and z are prefix sums. */
static void long_forward(const Values *v, int64_t N, double *out, double *den)
{
    double *S = calloc(LONG_D * LONG_D, sizeof *S), z[LONG_D] = { 0 };
    for (int64_t i = 0; i < N; i++) {
        double num[LONG_D] = { 0 };
        den[i] = (double)eps;
        for (int64_t d = 0; d < LONG_D; d++) {
            const double a = elu_plus_one(v->query[i * LONG_D + d]);
            const double b = elu_plus_one(v->key[i * LONG_D + d]);
            den[i] += a * (z[d] += b);
            for (int64_t m = 0; m < LONG_D; m++)
                num[m] += a * (S[d * LONG_D + m] += b * v->value[i * LONG_D + m]);
        }
        for (int64_t m = 0; m < LONG_D; m++)
            out[i * LONG_D + m] = num[m] / den[i];
    }
    free(S);
}

/* dkey and dvalue; R and r are suffix sums over the positions. */
static void long_backward(const Values *v, int64_t N, const double *out, const double *den,
                          double *dkey, double *dvalue)
{
    double *R = calloc(LONG_D * LONG_D, sizeof *R), r[LONG_D] = { 0 };
    for (int64_t i = N - 1; i >= 0; i--) {
        const Real *dout = v->dout + i * LONG_D, *value = v->value + i * LONG_D;
        double dden = 0;
        for (int64_t m = 0; m < LONG_D; m++)
            dden -= dout[m] * out[i * LONG_D + m] / den[i];
        for (int64_t m = 0; m < LONG_D; m++)
            dvalue[i * LONG_D + m] = 0;
        for (int64_t d = 0; d < LONG_D; d++) {
            const double a = elu_plus_one(v->query[i * LONG_D + d]);
            const double b = elu_plus_one(v->key[i * LONG_D + d]);
            double db = r[d] += a * dden;
            for (int64_t m = 0; m < LONG_D; m++) {
                const double R_dm = R[d * LONG_D + m] += a * dout[m] / den[i];
                db += R_dm * value[m];
                dvalue[i * LONG_D + m] += R_dm * b;
            }
            dkey[i * LONG_D + d] = db * fmin(1, b);
        }
    }
    free(R);
}

/* max |actual - expected| / max |expected| */
static double long_error(const Real *actual, const double *expected)
{
    double error = 0, size = 0;
    for (int64_t i = 0; i < LONG_N * LONG_D; i++) {
        const double e = fabs(actual[i] - expected[i]);
        error = !(e <= error) ? e : error;
        size = fmax(size, fabs(expected[i]));
    }
    return error / size;
}

/* Values in [0, 1): sums grow with the position, so a biased rounding would show. */
TEST(float32_is_accurate_over_65536_positions)
{
    const double allowed = sizeof(Real) == sizeof(float) ? 2e-5 : 1e-11;
    Case c = { 1, LONG_N, LONG_N, 1, LONG_D, LONG_D, true, false, .eps = 1e-6 };
    Values v = inputs(&c);
    Real *const all[] = { v.query, v.key, v.value, v.dout };
    for (int t = 0; t < 4; t++)
        for (int64_t i = 0; i < LONG_N * LONG_D; i++)
            all[t][i] = (Real)(0.5 + 0.5 * sin(12.9898 * (double)i + 78.233 * t));
    double *expected[4];
    for (int t = 0; t < 4; t++)
        expected[t] = malloc(LONG_N * LONG_D * sizeof(double));
    long_forward(&v, LONG_N, expected[0], expected[1]);
    long_backward(&v, LONG_N, expected[0], expected[1], expected[2], expected[3]);
    for (c.form = FORM_CHUNKED; c.form <= FORM_CHUNK_PARALLEL; c.form++) {
        compute(&c, &v);
        ck_assert_double_le(long_error(v.out, expected[0]), allowed);
        ck_assert_double_le(long_error(v.dkey, expected[2]), allowed);
        ck_assert_double_le(long_error(v.dvalue, expected[3]), allowed);
    }
    for (int t = 0; t < 4; t++)
        free(expected[t]);
}

/* Without a mask: one query reads very many keys, and very many queries one key. All values are in
 * [0, 1), so with FEATURE_MAP_IDENTITY all terms of a sum have one sign. */
TEST(sums_without_a_mask_stay_accurate)
{
    enum { MANY = 1 << 18 };
    const LinearAttentionOptions options = { .features = FEATURE_MAP_IDENTITY };
    Real one = 1, *x = test_zeros(MANY), *y = test_zeros(MANY), *g = test_zeros(MANY);
    Random random = random_new(5, 0);
    random_uniform(&random, x, MANY);
    random_uniform(&random, y, MANY);
    random_uniform(&random, g, MANY);
    double sum = 0, products = 0, upstream = 0;
    for (int i = 0; i < MANY; i++) {
        sum += (double)x[i];
        products += (double)x[i] * (double)y[i];
        upstream += (double)g[i];
    }
    Tape *cpu = tape_new(device_open("cpu"));
    const Shape single = shape(1, 1, 1, 1), many = shape(1, MANY, 1, 1);
    Tensor *out = op_linear_attention(cpu, tape_input(cpu, &one, single), tape_input(cpu, x, many),
                                      tape_input(cpu, y, many), options);
    ck_assert_double_le(fabs((double)test_values(out)[0] - products / sum), 5e-7);
    /* out_i = v, so dv = sum_i g_i */
    Tensor *v = tape_variable(cpu, &one, single);
    out = op_linear_attention(cpu, tape_input(cpu, x, many), tape_input(cpu, &one, single), v,
                              options);
    tape_backward_from(cpu, out, tape_input(cpu, g, many));
    ck_assert_double_le(fabs((double)test_values(tensor_gradient(v))[0] / upstream - 1), 1e-6);
    tape_free(cpu);
}

/* The largest error of a row relative to that row, except for the first row. */
static double largest_row_error(const Real *actual, const double *expected, int64_t N)
{
    double largest = 0;
    for (int64_t i = 1; i < N; i++) {
        double error = 0, size = 0;
        for (int64_t d = i * LONG_D; d < (i + 1) * LONG_D; d++) {
            const double e = fabs(actual[d] - expected[d]);
            error = !(e <= error) ? e : error;
            size = fmax(size, fabs(expected[d]));
        }
        largest = !(error / size <= largest) ? error / size : largest;
    }
    return largest;
}

/* A head ignores a token by a key far below zero. At the first position den is then tiny, and dnum,
 * which is divided by it, is large; later positions must not lose digits of their gradients. */
TEST(an_ignored_first_key_costs_no_accuracy)
{
    enum { N = 1024 };
    const double allowed = sizeof(Real) == sizeof(float) ? 1e-3 : 1e-10;
    Case c = { 1, N, N, 1, LONG_D, LONG_D, true, false, .eps = 1e-6 };
    Values v = inputs(&c);
    for (int64_t d = 0; d < LONG_D; d++)
        v.key[d] = -10;
    double *expected[4];
    for (int t = 0; t < 4; t++)
        expected[t] = malloc(N * LONG_D * sizeof(double));
    long_forward(&v, N, expected[0], expected[1]);
    long_backward(&v, N, expected[0], expected[1], expected[2], expected[3]);
    for (c.form = FORM_BEST; c.form <= FORM_CHUNK_PARALLEL; c.form++) {
        compute(&c, &v);
        ck_assert_double_le(largest_row_error(v.out, expected[0], N), allowed);
        ck_assert_double_le(largest_row_error(v.dkey, expected[2], N), allowed);
        ck_assert_double_le(largest_row_error(v.dvalue, expected[3], N), allowed);
    }
    for (int t = 0; t < 4; t++)
        free(expected[t]);
}

TEST(misuse_raises)
{
    Tensor *t[6];
    const Shape shapes[] = { shape(2, 5, 2, 3), shape(2, 5, 2, 4), shape(2, 4, 2, 3),
                             shape(2, 5, 6),    shape(1, 5, 2, 3), shape(2, 5, 3, 4) };
    for (int i = 0; i < 6; i++)
        t[i] = tape_input(tape, test_normal(1, shape_count(shapes[i])), shapes[i]);
    assert_raises("op_causal_linear_attention: query is NULL",
                  op_causal_linear_attention(tape, NULL, t[0], t[0], with_eps(eps), NULL));
    assert_raises("op_causal_linear_attention: query is [2,5,6], expected four axes, [B, N, H, D]",
                  op_causal_linear_attention(tape, t[3], t[0], t[0], with_eps(eps), NULL));
    assert_raises("op_causal_linear_attention: key is [2,5,6], expected [B, N, H, D] with the "
                  "B, H, D of query, [2,5,2,3]",
                  op_causal_linear_attention(tape, t[0], t[3], t[0], with_eps(eps), NULL));
    assert_raises("op_causal_linear_attention: key is [2,5,2,4], expected [B, N, H, D] with the "
                  "B, H, D of query, [2,5,2,3]",
                  op_causal_linear_attention(tape, t[0], t[1], t[0], with_eps(eps), NULL));
    assert_raises("op_linear_attention: key is [1,5,2,3], expected [B, N, H, D] with the "
                  "B, H, D of query, [2,5,2,3]",
                  op_linear_attention(tape, t[0], t[4], t[0], linear_with_eps(eps)));
    assert_raises("op_causal_linear_attention: key is [2,4,2,3], expected the same number of "
                  "positions as query, [2,5,2,3]",
                  op_causal_linear_attention(tape, t[0], t[2], t[2], with_eps(eps), NULL));
    assert_raises("op_linear_attention: value is [2,5,2,3], expected [B, N, H, M] with the "
                  "B, N, H of key, [2,4,2,3]",
                  op_linear_attention(tape, t[0], t[2], t[0], linear_with_eps(eps)));
    assert_raises("op_causal_linear_attention: value is [2,5,3,4], expected [B, N, H, M] with the "
                  "B, N, H of key, [2,5,2,3]",
                  op_causal_linear_attention(tape, t[0], t[0], t[5], with_eps(eps), NULL));
    assert_raises("op_causal_linear_attention: value is NULL; give both key and value, or neither "
                  "when query holds all three",
                  op_causal_linear_attention(tape, t[0], t[0], NULL, with_eps(eps), NULL));
    assert_raises("op_linear_attention: key is NULL; give both key and value, or neither when "
                  "query holds all three",
                  op_linear_attention(tape, t[0], NULL, t[0], linear_with_eps(eps)));
    assert_raises("op_causal_linear_attention: query without key and value must hold all three, "
                  "[B, N, 3 H, D], but is [2,5,2,3]: its third size is no multiple of 3",
                  op_causal_linear_attention(tape, t[0], NULL, NULL, with_eps(eps), NULL));
    assert_raises("op_causal_linear_attention: eps is -1, expected 0 or more",
                  op_causal_linear_attention(tape, t[0], t[0], t[0], with_eps(-1), NULL));
    assert_raises("op_linear_attention: eps is inf, expected 0 or more",
                  op_linear_attention(tape, t[0], t[0], t[0], linear_with_eps(INFINITY)));
    assert_raises("op_linear_attention: eps is nan, expected 0 or more",
                  op_linear_attention(tape, t[0], t[0], t[0], linear_with_eps(NAN)));
}

TEST(misuse_of_key_lengths_raises)
{
    const Shape row = shape(2, 5, 2, 3);
    Tensor *x = tape_input(tape, test_normal(1, shape_count(row)), row);
    const int32_t lengths[] = { 5, 6, 5 };
    Tensor *too_long = tape_input_i32(tape, lengths, shape(2));
    Tensor *zero = tape_input_i32(tape, (const int32_t[]){ 0, 1 }, shape(2));
    Tensor *three = tape_input_i32(tape, lengths, shape(3));
    assert_raises("op_linear_attention: key_lengths[1] is 6, expected 1 to 5, the number of keys",
                  op_linear_attention(tape, x, x, x, with_lengths(too_long)));
    assert_raises("op_linear_attention: key_lengths[0] is 0, expected 1 to 5, the number of keys",
                  op_linear_attention(tape, x, x, x, with_lengths(zero)));
    assert_raises("op_linear_attention: key_lengths is [3], expected [2]: one per sequence",
                  op_linear_attention(tape, x, x, x, with_lengths(three)));
    test_expect_error();
    if (!setjmp(test_error_jump)) {
        op_linear_attention(tape, x, x, x, with_lengths(x));
        ck_abort_msg("lengths of Real type are taken");
    }
    tapegrad_on_error(NULL, NULL);
}

int main(void)
{
    setenv("TAPEGRAD_CUDA_EARLY", "1", 0); /* the emulation checks dependent launches */
    return test_main("attention", make_tape, NULL);
}
