/* LSH attention against exact softmax attention and the plain kernels. */
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEED = 5 };

/* ------------------------------------------------------------------------------- plain kernels */
typedef struct Case {
    int64_t B, N, H, D, M;
    int64_t rounds, chunk, buckets[2]; /* of one hash or of two; the option is their product */
    bool causal;
    const int32_t *lengths;
} Case;

/* Arguments; dout is the gradient of the result. */
typedef struct Arrays {
    Real *x, *value, *dout;
} Arrays;
/* Indices of an Outcome. */
enum { OUT, DX, DVALUE };

static int64_t x_count(const Case *c)
{
    return c->B * c->N * c->H * c->D;
}
static int64_t value_count(const Case *c)
{
    return c->B * c->N * c->H * c->M;
}

static Arrays arrays_for(const Case *c)
{
    return (Arrays){ .x = test_normal(1, x_count(c)),
                     .value = test_normal(3, value_count(c)),
                     .dout = test_normal(TEST_UPSTREAM, value_count(c)) };
}

static Tensor *lsh_attention(Tape *tape, Tensor *query_key, Tensor *value, const Case *c)
{
    const LshAttentionOptions options = {
        .rounds = c->rounds,
        .chunk = c->chunk,
        .buckets = c->buckets[0] * c->buckets[1],
        .key_lengths = c->lengths ? tape_input_i32(tape, c->lengths, shape(c->B)) : NULL
    };
    return (c->causal ? op_causal_lsh_attention : op_lsh_attention)(tape, query_key, value,
                                                                    options);
}

static Tensor *op_attention_of(Tape *tape, Tensor *const *in, void *context)
{
    return lsh_attention(tape, in[0], in[1], context);
}

/* device: NULL for the one under test */
static Outcome computed(const char *device, Case *c, const Arrays *a)
{
    const CheckInput inputs[] = { { shape(c->B, c->N, c->H, c->D), a->x },
                                  { shape(c->B, c->N, c->H, c->M), a->value } };
    return test_outcome(device, SEED, op_attention_of, c, inputs, 2);
}

/* The outcome on the device under test, which is plain's. */
static Outcome check_arrays(Case *c, const Arrays *x)
{
    const Outcome y = computed(NULL, c, x), plain = computed("plain", c, x);
    assert_outcomes_near("LSH attention", &y, &plain, VECTOR_TOLERANCE);
    return y;
}

static void check_case(Case c)
{
    const Arrays x = arrays_for(&c);
    check_arrays(&c, &x);
}

/* Row i of a head without key lengths: the softmax over all other keys, or all earlier ones. */
static void assert_exact_row(const Case *c, const Arrays *a, const Real *out, int64_t h, int64_t i)
{
    const int64_t keys = c->causal ? i : c->N, step = c->H * c->D, m_step = c->H * c->M;
    const Real *x = a->x + h * c->D, *value = a->value + h * c->M;
    double sum = 0, expected[16] = { 0 };
    for (int64_t j = 0; j < keys; j++) {
        const double length = sqrt(test_dot(x + j * step, x + j * step, c->D) + 1e-6);
        const double dot = test_dot(x + i * step, x + j * step, c->D);
        const double e = j == i ? 0 : exp(dot / (length * sqrt((double)c->D)));
        sum += e;
        for (int64_t m = 0; m < c->M; m++)
            expected[m] += e * (double)value[j * m_step + m];
    }
    for (int64_t m = 0; m < c->M; m++) {
        const double e = sum > 0 ? expected[m] / sum : (double)value[i * m_step + m];
        ck_assert_double_eq_tol((double)out[i * m_step + h * c->M + m], e, VECTOR_TOLERANCE);
    }
}

/* One bucket, one chunk: softmax attention with these keys, except that no position attends to
 * itself. */
TEST(exact_attention_when_one_bucket_holds_all)
{
    const int64_t lengths[] = { 1, 2, 31, 32, 33, 64, 129, 300 };
    for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++)
        for (int causal = 0; causal < 2; causal++) {
            Case c = { 1, lengths[n], 2, 8, 5, 1, 300, { 1, 1 }, causal, NULL };
            const Arrays x = arrays_for(&c);
            const Outcome y = check_arrays(&c, &x);
            for (int64_t h = 0; h < c.H; h++)
                for (int64_t i = 0; i < c.N; i++)
                    assert_exact_row(&c, &x, y.values[OUT], h, i);
        }
}

/* Keys u and -u are in different buckets whatever R is, and all scores of a bucket are equal: the
 * result is the mean of the other values of the bucket. */
TEST(a_position_attends_to_its_bucket)
{
    enum { N = 40, D = 3, M = 2 };
    Case c = { 1, N, 1, D, M, 2, N, { 2, 1 }, false, NULL };
    const Arrays x = arrays_for(&c);
    for (int i = 0; i < N; i++)
        for (int e = 0; e < D; e++)
            x.x[i * D + e] = i % 3 ? (Real)(e + 1) : (Real)(-e - 1);
    const Outcome y = computed(NULL, &c, &x);
    for (int i = 0; i < N; i++)
        for (int m = 0; m < M; m++) {
            double sum = 0;
            int keys = 0;
            for (int j = 0; j < N; j++)
                if (j != i && !(i % 3) == !(j % 3)) {
                    sum += (double)x.value[j * M + m];
                    keys++;
                }
            ck_assert_double_eq_tol((double)y.values[OUT][i * M + m], sum / keys, VECTOR_TOLERANCE);
        }
}

TEST(equals_plain_for_many_shapes)
{
    const int64_t sizes[][4] = { /* N, chunk, buckets */
                                 { 1, 4, 2, 1 },    { 5, 32, 2, 1 },    { 33, 8, 6, 1 },
                                 { 64, 16, 8, 1 },  { 100, 1, 4, 1 },   { 130, 7, 30, 1 },
                                 { 150, 64, 2, 1 }, { 260, 32, 16, 1 }, { 300, 100, 4, 1 },
                                 { 200, 5, 8, 10 }, { 256, 2, 16, 16 }
    };
    const int64_t heads[][3] = { { 1, 3, 5 }, { 3, 8, 8 }, { 2, 32, 16 }, { 1, 70, 33 } };
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++)
        for (int causal = 0; causal < 2; causal++)
            for (int64_t rounds = 1; rounds <= 4; rounds += 3)
                check_case((Case){ 1 + (int64_t)n % 2,
                                   sizes[n][0],
                                   heads[n % 4][0],
                                   heads[n % 4][1],
                                   heads[n % 4][2],
                                   rounds,
                                   sizes[n][1],
                                   { sizes[n][2], sizes[n][3] },
                                   causal,
                                   NULL });
}

TEST(packed_equals_separate)
{
    enum { H = 3 };
    Tape *tape = tape_new(test_device());
    for (int i = 0; i < 4; i++) {
        const LshAttentionOptions options = { .rounds = 2, .chunk = 8, .buckets = 6 };
        const Shape of = shape(2, 75, 2 * H, i % 2 ? 20 : 32);
        Outcome outcomes[2] = { 0 };
        for (int packed = 0; packed < 2; packed++) {
            tape_seed(tape, SEED);
            Tensor *all = tape_variable(tape, test_normal(1, shape_count(of)), of);
            Tensor *query_key = packed ? all : op_slice(tape, all, 2, 0, H);
            Tensor *value = packed ? NULL : op_slice(tape, all, 2, H, H);
            Tensor *out = tensor_keep((i < 2 ? op_causal_lsh_attention
                                             : op_lsh_attention)(tape, query_key, value, options));
            const Real *upstream = test_normal(TEST_UPSTREAM, tensor_count(out));
            tape_backward_from(tape, out, tape_input(tape, upstream, out->shape));
            test_note(&outcomes[packed], out);
            test_note(&outcomes[packed], tensor_gradient(all));
            tape_reset(tape);
        }
        assert_outcomes_near("packed", &outcomes[1], &outcomes[0], 0);
    }
    tape_free(tape);
}

/* More heads than a grid has blocks. */
TEST(many_heads)
{
    check_case((Case){ 70, 3, 60, 2, 2, 2, 2, { 2, 1 }, false, NULL });
}

/* Positions past a length are not read: they hold NaN here. Their results and gradients are 0, and
 * the others' are those of the sequence alone. */
TEST(key_lengths)
{
    const int32_t lengths[] = { 1, 31, 32, 100, 7 };
    for (int causal = 0; causal < 2; causal++) {
        Case c = { 5, 100, 2, 6, 10, 2, 8, { 8, 1 }, causal, lengths };
        Arrays x = arrays_for(&c);
        for (int64_t b = 0; b < c.B; b++)
            for (int64_t i = lengths[b]; i < c.N; i++) {
                x.x[(b * c.N + i) * c.H * c.D] = (Real)NAN;
                x.value[(b * c.N + i) * c.H * c.M] = (Real)NAN;
            }
        const Outcome y = check_arrays(&c, &x);
        for (int64_t b = 0; b < c.B; b++)
            for (int64_t i = lengths[b] * c.H; i < c.N * c.H; i++) {
                ck_assert(y.values[OUT][(b * c.N * c.H + i) * c.M] == 0);
                ck_assert(y.values[DX][(b * c.N * c.H + i) * c.D] == 0);
                ck_assert(y.values[DVALUE][(b * c.N * c.H + i) * c.M] == 0);
            }
    }
}

/* With one bucket per position some positions have no visible keys in any round: the first of each
 * causal bucket. */
TEST(a_position_without_visible_keys_attends_to_itself)
{
    Case c = { 1, 60, 1, 4, 3, 2, 2, { 60, 1 }, true, NULL };
    const Arrays x = arrays_for(&c);
    const Outcome y = check_arrays(&c, &x);
    int alone = 0;
    for (int64_t i = 0; i < c.N; i++)
        alone +=
            memcmp(y.values[OUT] + i * c.M, x.value + i * c.M, (size_t)c.M * sizeof(Real)) == 0;
    ck_assert_msg(alone > 5 && alone < c.N, "%d positions attend to themselves", alone);
}

/* The defaults of chunk and buckets. */
TEST(defaults)
{
    Case c = { 1, 200, 2, 8, 8, 1, 32, { 14, 1 }, false, NULL };
    Arrays x = arrays_for(&c);
    Tape *tape = tape_new(test_device());
    Real *results[2];
    for (int i = 0; i < 2; i++) {
        tape_seed(tape, SEED);
        Tensor *in = tape_input(tape, x.x, shape(c.B, c.N, c.H, c.D));
        results[i] = test_values(i ? lsh_attention(tape, in, in, &c)
                                   : op_lsh_attention(tape, in, in, (LshAttentionOptions){ 0 }));
    }
    assert_close(results[0], results[1], value_count(&c), 0);
    tape_free(tape);
}

/* ------------------------------------------------------------------------------- extreme values */
/* Scores of some thousands neither overflow nor all underflow; a vector of length 0 causes no
 * division by 0. */
TEST(large_scores_and_no_length)
{
    Case c = { 1, 100, 1, 4, 4, 2, 16, { 4, 1 }, false, NULL };
    Arrays x = arrays_for(&c);
    for (int64_t i = 0; i < x_count(&c); i++)
        x.x[i] *= i / 4 % 7 ? 1000 : 0;
    const Outcome y = computed(NULL, &c, &x);
    double largest = 0;
    for (int64_t i = 0; i < value_count(&c); i++)
        largest = fmax(largest, fabs((double)x.value[i]));
    for (int64_t i = 0; i < value_count(&c); i++) {
        ck_assert_msg(fabs((double)y.values[OUT][i]) <= 1.0001 * largest, "%g",
                      (double)y.values[OUT][i]);
        ck_assert(isfinite(y.values[DX][i]) && isfinite(y.values[DVALUE][i]));
    }
}

/* All scores are 1e9, where neighboring floats are 64 apart: out is the mean of the other values,
 * and dv_j the mean of the other g_i, whatever the rounds. */
TEST(large_equal_scores)
{
    enum { N = 70, M = 3 };
    const char *devices[] = { NULL, "plain" };
    for (int64_t rounds = 1; rounds <= 3; rounds += 2)
        for (int d = 0; d < 2; d++) {
            Case c = { 1, N, 1, 1, M, rounds, N, { 1, 1 }, false, NULL };
            const Arrays x = arrays_for(&c);
            double values[M] = { 0 }, upstream[M] = { 0 };
            for (int i = 0; i < N; i++) {
                x.x[i] = (Real)1e9;
                for (int e = 0; e < M; e++) {
                    values[e] += (double)x.value[i * M + e];
                    upstream[e] += (double)x.dout[i * M + e];
                }
            }
            const Outcome y = computed(devices[d], &c, &x);
            for (int i = 0; i < N * M; i++) {
                const double out = (values[i % M] - (double)x.value[i]) / (N - 1);
                const double dvalue = (upstream[i % M] - (double)x.dout[i]) / (N - 1);
                ck_assert_double_eq_tol((double)y.values[OUT][i], out, VECTOR_TOLERANCE);
                ck_assert_double_eq_tol((double)y.values[DVALUE][i], dvalue, VECTOR_TOLERANCE);
            }
        }
}

/* A NaN appears in its own row and in the rows that attend to it, and nowhere else. */
TEST(nan_reaches_the_rows_that_attend_to_it)
{
    enum { N = 100, AT = 70 };
    Case c = { 1, N, 1, 3, 2, 1, N, { 1, 1 }, true, NULL };
    Arrays x = arrays_for(&c);
    x.x[AT * 3] = (Real)NAN;
    const Outcome y = computed(NULL, &c, &x);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(isnan(y.values[OUT][2 * i]), i >= AT);
}

/* ------------------------------------------------------------------------ randomness and memory */
TEST(each_call_draws_other_hashes)
{
    Tape *tape = tape_new(test_device());
    Tensor *x = tape_input(tape, test_normal(1, 4 * 64 * 8), shape(1, 64, 4, 8));
    LshAttentionOptions options = { .chunk = 8 };
    Real *results[3];
    for (int i = 0; i < 3; i++) {
        if (i == 2)
            tape_seed(tape, 0);
        results[i] = test_values(op_lsh_attention(tape, x, x, options));
    }
    ck_assert(memcmp(results[0], results[1], 4 * 64 * 8 * sizeof(Real)) != 0);
    ck_assert_mem_eq(results[0], results[2], 4 * 64 * 8 * sizeof(Real));
    tape_free(tape);
}

/* A hash has a column of D elements for each two of its buckets and each head. More than 64 buckets
 * are those of two hashes: 66 and 80 of 8 and 10, 100 of 10 and 10, 1000 of 30 and 34. */
TEST(buckets_are_those_of_one_hash_or_two)
{
    enum { H = 4, D = 8 };
    static const int64_t buckets[] = { 2, 16, 64, 66, 80, 100, 1000 };
    static const uint64_t columns[] = { 1, 8, 32, 9, 9, 10, 32 };
    Tape *tape = tape_new(test_device());
    tape_set_recording(tape, false);
    Tensor *x = tape_input(tape, test_normal(1, H * D), shape(1, 1, H, D));
    for (int i = 0; i < 7; i++) {
        const uint64_t before = tape_random(tape).counter;
        op_lsh_attention(tape, x, x, (LshAttentionOptions){ .buckets = buckets[i] });
        ck_assert_uint_eq(tape_random(tape).counter - before, H * D * columns[i] / 4);
    }
    tape_free(tape);
}

static size_t peak_bytes(int64_t N, int64_t rounds, bool backward)
{
    Device *device = test_device();
    Tape *tape = tape_new(device);
    device_reset_peak(device);
    size_t before = device_memory(device).current;
    Real *values = test_normal(1, N * 4 * 8);
    Tensor *all = tape_variable(tape, values, shape(1, N, 4, 8));
    Tensor *out = op_lsh_attention(tape, all, all, (LshAttentionOptions){ .rounds = rounds });
    if (backward)
        tape_backward_from(tape, out, tape_input(tape, values, out->shape));
    size_t peak = device_memory(device).peak - before;
    tape_free(tape);
    return peak;
}

TEST(memory_grows_linearly)
{
    test_set_threads(2);
    for (int64_t rounds = 1; rounds <= 4; rounds += 3)
        for (int backward = 0; backward < 2; backward++) {
            size_t one = peak_bytes(1024, rounds, backward);
            size_t four = peak_bytes(4096, rounds, backward);
            ck_assert_msg(four <= 4 * one, "%zu bytes for 1024 positions, %zu for 4096", one, four);
        }
}

/* --------------------------------------------------------------------------------------- misuse */
TEST(misuse_of_the_kinds_raises)
{
    Params *params = params_new(test_device(), 1);
    Tape *tape = tape_new(test_device());
    assert_raises("nn_lsh_attention: rounds is 65, expected 1 to 64, or 0 for the default",
                  nn_lsh_attention(params, (LshConfig){ .rounds = 65 }));
    assert_raises("nn_lsh_attention: buckets is 3, expected an even number, or 1",
                  nn_lsh_attention(params, (LshConfig){ .buckets = 3 }));
    assert_raises("nn_causal_lsh_attention: chunk is -1, expected 1 to 1048576, or 0 for the "
                  "default",
                  nn_causal_lsh_attention(params, (LshConfig){ .chunk = -1 }));
    TransformerConfig config = { .heads = 1, .head_dim = 2 };
    config.attention = nn_causal_lsh_attention(params, (LshConfig){ 0 });
    const Attention layer = nn_attention(params, "a", config);
    Tensor *x = tape_input(tape, test_normal(1, 6), shape(1, 3, 2));
    const AttentionOptions masked = { .mask = tape_input(tape, test_zeros(9), shape(3, 3)) };
    assert_raises("nn_attention: causal LSH attention takes no mask; softmax attention does",
                  nn_attention_forward(tape, &layer, x, masked));
    tape_free(tape);
    params_free(params);
}

#define OPTIONS(...) ((LshAttentionOptions){ __VA_ARGS__ })

TEST(misuse_raises)
{
    Tape *tape = tape_new(test_device());
    Real *values = test_normal(1, 2 * 4 * 6 * 3);
    const int32_t integers[] = { 1, 5 };
    Tensor *x = tape_input(tape, values, shape(2, 4, 3, 2));
    Tensor *five = tape_input(tape, values, shape(2, 5, 3, 2));
    Tensor *flat = tape_input(tape, values, shape(2, 4, 6));
    Tensor *lengths = tape_input_i32(tape, integers, shape(2));
    assert_raises("op_lsh_attention: query_key is NULL",
                  op_lsh_attention(tape, NULL, x, OPTIONS(0)));
    assert_raises("op_causal_lsh_attention: query_key is NULL",
                  op_causal_lsh_attention(tape, NULL, x, OPTIONS(0)));
    assert_raises("op_lsh_attention: query_key has dtype int32, expected Real",
                  op_lsh_attention(tape, lengths, x, OPTIONS(0)));
    assert_raises("op_lsh_attention: query_key is [2,4,6], expected four axes, [B, N, H, D]",
                  op_lsh_attention(tape, flat, x, OPTIONS(0)));
    assert_raises(
        "op_lsh_attention: query_key without value must hold both, [B, N, 2 H, D], but is "
        "[2,4,3,2]: its third size is no multiple of 2",
        op_lsh_attention(tape, x, NULL, OPTIONS(0)));
    assert_raises("op_lsh_attention: value is [2,5,3,2], expected [B, N, H, M] with the B, N, H of "
                  "query_key, [2,4,3,2]",
                  op_lsh_attention(tape, x, five, OPTIONS(0)));
    assert_raises("op_lsh_attention: rounds is 65, expected 1 to 64, or 0 for the default",
                  op_lsh_attention(tape, x, x, OPTIONS(.rounds = 65)));
    assert_raises("op_lsh_attention: chunk is -1, expected 1 to 1073741823, or 0 for the default",
                  op_lsh_attention(tape, x, x, OPTIONS(.chunk = -1)));
    assert_raises("op_lsh_attention: buckets is 7, expected an even number, or 1",
                  op_lsh_attention(tape, x, x, OPTIONS(.buckets = 7)));
    assert_raises("op_lsh_attention: buckets is -2, expected 1 to 1048576, or 0 for the default",
                  op_lsh_attention(tape, x, x, OPTIONS(.buckets = -2)));
    assert_raises("op_lsh_attention: key_lengths[1] is 5, expected 1 to 4, the number of keys",
                  op_lsh_attention(tape, x, x, OPTIONS(.key_lengths = lengths)));
    assert_raises("op_lsh_attention: key_lengths has dtype Real, expected int32",
                  op_lsh_attention(tape, x, x, OPTIONS(.key_lengths = x)));
    tape_free(tape);
}

int main(void)
{
    return test_main("lsh_attention", NULL, NULL);
}
