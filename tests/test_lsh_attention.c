/* LSH attention against finite differences and a plain N x N computation that hashes with the same
 * random numbers. */
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEED = 5, MOST_POSITIONS = 400 };

/* ---------------------------------------------------------------------------------- plain N x N */
typedef struct Case {
    int64_t B, N, H, D, M;
    int64_t rounds, chunk, buckets[2]; /* of one hash or of two; the option is their product */
    bool causal;
    const int32_t *lengths;
} Case;

typedef struct Arrays {
    Real *x, *value, *dout;
    Real *out, *dx, *dvalue;
} Arrays;

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
                     .dout = test_normal(4, value_count(c)),
                     .out = test_zeros(value_count(c)),
                     .dx = test_zeros(x_count(c)),
                     .dvalue = test_zeros(value_count(c)) };
}

/* argmax([xR; -xR]); the columns of R are contiguous */
static int64_t hash(const Real *x, const Real *R, int64_t D, int64_t buckets)
{
    int64_t best = 0, half = buckets / 2;
    double most = -INFINITY;
    for (int64_t c = 0; c < 2 * half; c++) {
        double p = test_dot(x, R + c % half * D, D) * (c < half ? 1 : -1);
        best = p > most ? c : best;
        most = fmax(most, p);
    }
    return best;
}

typedef struct Seen {
    bool by[MOST_POSITIONS][MOST_POSITIONS]; /* [query][key] */
} Seen;

static int64_t positions(const Case *c, int64_t b)
{
    return c->lengths ? c->lengths[b] : c->N;
}

/* Adds the pairs that one round lets see each other, by the definition: the rank of a position is
 * the number of positions sorted before it. */
static void see_round(Seen *seen, const Case *c, const int64_t *bucket, int64_t N)
{
    int64_t chunk[MOST_POSITIONS];
    for (int64_t i = 0; i < N; i++) {
        int64_t place = 0;
        for (int64_t j = 0; j < N; j++)
            place += bucket[j] < bucket[i] || (bucket[j] == bucket[i] && j < i);
        chunk[i] = place / c->chunk;
    }
    for (int64_t i = 0; i < N; i++)
        for (int64_t j = 0; j < N; j++)
            seen->by[i][j] |= bucket[i] == bucket[j] && i != j && (!c->causal || j < i) &&
                              (chunk[j] == chunk[i] || chunk[j] == chunk[i] - 1);
}

/* The pairs that all rounds together let see each other in a head; R is [rounds, H, columns, D]. */
static void see(Seen *seen, const Case *c, const Real *x, const Real *R, int64_t b, int64_t h)
{
    int64_t columns = c->buckets[0] / 2 + c->buckets[1] / 2, bucket[MOST_POSITIONS];
    memset(seen, 0, sizeof *seen);
    for (int64_t round = 0; round < c->rounds; round++) {
        const Real *R_round = R + (round * c->H + h) * columns * c->D;
        for (int64_t i = 0; i < positions(c, b); i++) {
            const Real *x_i = x + ((b * c->N + i) * c->H + h) * c->D;
            bucket[i] = c->buckets[0] > 1 ? hash(x_i, R_round, c->D, c->buckets[0]) : 0;
            if (c->buckets[1] > 1)
                bucket[i] = bucket[i] * c->buckets[1] +
                            hash(x_i, R_round + c->buckets[0] / 2 * c->D, c->D, c->buckets[1]);
        }
        see_round(seen, c, bucket, positions(c, b));
    }
}

/* dx += du times the Jacobian of u = x / sqrt(x.x + eps), written out */
static void through_length(Real *dx, const Real *x, const double *du, int64_t D)
{
    double square = test_dot(x, x, D) + 1e-6;
    for (int64_t c = 0; c < D; c++)
        for (int64_t e = 0; e < D; e++)
            dx[e] += (Real)(du[c] * ((c == e) / sqrt(square) -
                                     (double)x[c] * (double)x[e] / pow(square, 1.5)));
}

/* The probabilities of query i; returns whether it sees any key. */
static bool probabilities(double *P, const Seen *seen, const Case *c, const Real *x, int64_t i,
                          int64_t N)
{
    int64_t step = c->H * c->D;
    double sum = 0;
    for (int64_t j = 0; j < N; j++) {
        double length = sqrt(test_dot(x + j * step, x + j * step, c->D) + 1e-6);
        double score = test_dot(x + i * step, x + j * step, c->D) / (length * sqrt((double)c->D));
        P[j] = seen->by[i][j] ? exp(score) : 0; /* scores are small here */
        sum += P[j];
    }
    for (int64_t j = 0; j < N; j++)
        P[j] = sum > 0 ? P[j] / sum : i == j;
    return sum > 0;
}

/* One query's output and its contributions to the gradients, in double. */
static void plain_row(const Case *c, const Arrays *a, const Seen *seen, int64_t b, int64_t h,
                      int64_t i)
{
    double P[MOST_POSITIONS], dP[MOST_POSITIONS], du[128], scale = 1 / sqrt((double)c->D);
    int64_t head = b * c->N * c->H + h, row = head + i * c->H, N = positions(c, b);
    const Real *x = a->x + head * c->D, *x_i = a->x + row * c->D, *dout = a->dout + row * c->M;
    bool any = probabilities(P, seen, c, x, i, N);
    for (int64_t j = 0; j < N; j++) {
        int64_t key_row = (head + j * c->H) * c->M;
        dP[j] = test_dot(dout, a->value + key_row, c->M);
        for (int64_t m = 0; P[j] > 0 && m < c->M; m++) {
            a->out[row * c->M + m] += (Real)(P[j] * (double)a->value[key_row + m]);
            a->dvalue[key_row + m] += (Real)(P[j] * (double)dout[m]);
        }
    }
    for (int64_t k = 0; any && k < N; k++) {
        double dS = 0;
        for (int64_t j = 0; j < N; j++)
            dS += P[j] > 0 ? dP[j] * P[j] * ((j == k) - P[k]) : 0;
        const Real *x_k = x + k * c->H * c->D;
        double length = sqrt(test_dot(x_k, x_k, c->D) + 1e-6);
        for (int64_t d = 0; d < c->D; d++) {
            a->dx[row * c->D + d] += (Real)(dS * scale * (double)x_k[d] / length);
            du[d] = dS * scale * (double)x_i[d];
        }
        through_length(a->dx + (head + k * c->H) * c->D, x_k, du, c->D);
    }
}

/* The random matrices that the operation will draw. */
static Real *matrices(const Case *c)
{
    Tape *tape = tape_new(test_device());
    tape_seed(tape, SEED);
    Random random = tape_random(tape);
    tape_free(tape);
    int64_t count = c->rounds * c->H * (c->buckets[0] / 2 + c->buckets[1] / 2) * c->D;
    Real *R = test_zeros(count + 1);
    random_normal(&random, R, count);
    return R;
}

static void plain(const Case *c, const Arrays *a)
{
    Seen *seen = malloc(sizeof *seen);
    ck_assert_ptr_nonnull(seen);
    ck_assert_int_le(c->N, MOST_POSITIONS);
    Real *R = matrices(c);
    for (int64_t b = 0; b < c->B; b++)
        for (int64_t h = 0; h < c->H; h++) {
            see(seen, c, a->x, R, b, h);
            for (int64_t i = 0; i < positions(c, b); i++)
                plain_row(c, a, seen, b, h, i);
        }
    free(seen);
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

/* The results of the operation. */
static Arrays computed(const Case *c, const Arrays *a)
{
    Tape *tape = tape_new(test_device());
    tape_seed(tape, SEED);
    Tensor *x = tape_variable(tape, a->x, shape(c->B, c->N, c->H, c->D));
    Tensor *value = tape_variable(tape, a->value, shape(c->B, c->N, c->H, c->M));
    Tensor *out = tensor_keep(lsh_attention(tape, x, value, c));
    tape_backward_from(tape, out, tape_input(tape, a->dout, out->shape));
    Arrays y = { .out = test_values(out),
                 .dx = test_values(tensor_gradient(x)),
                 .dvalue = test_values(tensor_gradient(value)) };
    tape_free(tape);
    return y;
}

static void assert_arrays_near(const Case *c, const Arrays *a, const Arrays *b, double tolerance)
{
    assert_near("out", a->out, b->out, value_count(c), tolerance);
    assert_near("dx", a->dx, b->dx, x_count(c), tolerance);
    assert_near("dvalue", a->dvalue, b->dvalue, value_count(c), tolerance);
}

static void check_case(Case c)
{
    Arrays x = arrays_for(&c), y = computed(&c, &x);
    plain(&c, &x);
    assert_arrays_near(&c, &y, &x, VECTOR_TOLERANCE);
}

/* One bucket, one chunk: softmax attention with these keys, except that no position sees itself. */
TEST(exact_attention_when_one_bucket_holds_all)
{
    const int64_t lengths[] = { 1, 2, 31, 32, 33, 64, 129, 300 };
    for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++)
        for (int causal = 0; causal < 2; causal++) {
            Case c = { 1, lengths[n], 2, 8, 5, 1, 300, { 1, 1 }, causal, NULL };
            Arrays x = arrays_for(&c), y = computed(&c, &x);
            Seen *seen = malloc(sizeof *seen);
            ck_assert_ptr_nonnull(seen);
            for (int64_t i = 0; i < c.N; i++)
                for (int64_t j = 0; j < c.N; j++)
                    seen->by[i][j] = causal ? j < i : j != i;
            for (int64_t h = 0; h < c.H; h++)
                for (int64_t i = 0; i < c.N; i++)
                    plain_row(&c, &x, seen, 0, h, i);
            free(seen);
            assert_arrays_near(&c, &y, &x, VECTOR_TOLERANCE);
        }
}

TEST(plain_computation_of_many_shapes)
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
        Arrays y = computed(&c, &x);
        plain(&c, &x);
        assert_arrays_near(&c, &y, &x, VECTOR_TOLERANCE);
        for (int64_t b = 0; b < c.B; b++)
            for (int64_t i = lengths[b] * c.H; i < c.N * c.H; i++) {
                ck_assert(y.out[(b * c.N * c.H + i) * c.M] == 0);
                ck_assert(y.dx[(b * c.N * c.H + i) * c.D] == 0);
                ck_assert(y.dvalue[(b * c.N * c.H + i) * c.M] == 0);
            }
    }
}

/* With one bucket per position some positions see no other in any round: the first of each
 * causal bucket. */
TEST(a_position_without_others_sees_itself)
{
    Case c = { 1, 60, 1, 4, 3, 2, 2, { 60, 1 }, true, NULL };
    Arrays x = arrays_for(&c), y = computed(&c, &x);
    int alone = 0;
    for (int64_t i = 0; i < c.N; i++)
        alone += memcmp(y.out + i * c.M, x.value + i * c.M, (size_t)c.M * sizeof(Real)) == 0;
    ck_assert_msg(alone > 5 && alone < c.N, "%d positions see themselves", alone);
    plain(&c, &x);
    assert_arrays_near(&c, &y, &x, VECTOR_TOLERANCE);
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

/* ----------------------------------------------------------------------- forms of the arguments */
TEST(packed_equals_separate)
{
    enum { B = 2, N = 75, H = 3, D = 12, PART = H * D };
    Case c = { B, N, H, D, D, 2, 8, { 6, 1 }, true, NULL };
    Arrays x = arrays_for(&c), y = computed(&c, &x);
    const Real *packed = test_packed((const Real *[]){ x.x, x.value }, 2, B * N, PART);
    const Real *expected = test_packed((const Real *[]){ y.dx, y.dvalue }, 2, B * N, PART);
    Tape *tape = tape_new(test_device());
    tape_seed(tape, SEED);
    Tensor *both = tape_variable(tape, packed, shape(B, N, 2 * H, D));
    Tensor *out = tensor_keep(lsh_attention(tape, both, NULL, &c));
    tape_backward_from(tape, out, tape_input(tape, x.dout, out->shape));
    assert_close(test_values(out), y.out, value_count(&c), 0);
    assert_close(test_values(tensor_gradient(both)), expected, 2 * x_count(&c), 0);
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
    Arrays y = computed(&c, &x);
    double largest = 0;
    for (int64_t i = 0; i < value_count(&c); i++)
        largest = fmax(largest, fabs((double)x.value[i]));
    for (int64_t i = 0; i < value_count(&c); i++) {
        ck_assert_msg(fabs((double)y.out[i]) <= 1.0001 * largest, "%g", (double)y.out[i]);
        ck_assert(isfinite(y.dx[i]) && isfinite(y.dvalue[i]));
    }
}

/* A NaN appears in its own row and in the rows that see it, and nowhere else. */
TEST(nan_reaches_the_rows_that_see_it)
{
    enum { N = 100, AT = 70 };
    Case c = { 1, N, 1, 3, 2, 1, N, { 1, 1 }, true, NULL };
    Arrays x = arrays_for(&c);
    x.x[AT * 3] = (Real)NAN;
    Arrays y = computed(&c, &x);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(isnan(y.out[2 * i]), i >= AT);
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
    tape_set_recording(tape, false);
    Random before = tape_random(tape);
    op_lsh_attention(tape, x, x, options); /* 16 buckets: 8 columns of 8 elements, for 4 heads */
    ck_assert_uint_eq(tape_random(tape).counter, before.counter + 4 * 8 * 8 / 4);
    tape_free(tape);
}

TEST(two_runs_are_bitwise_equal_on_any_number_of_threads)
{
    for (int64_t H = 1; H <= 3; H += 2) {
        Case c = { 1, 390, H, 8, 8, 3, 32, { 8, 1 }, H == 1, NULL };
        Arrays x = arrays_for(&c);
        test_set_threads(1);
        Arrays once = computed(&c, &x);
        for (int threads = 1; threads < 6; threads++) {
            test_set_threads(threads);
            Arrays again = computed(&c, &x);
            assert_arrays_near(&c, &again, &once, 0);
        }
    }
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
#define OPTIONS(...) ((LshAttentionOptions){ __VA_ARGS__ })

TEST(misuse_is_reported)
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
