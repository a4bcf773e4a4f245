/* Gated linear attention: values and gradients against the recurrence in double, where the past
 * fades fast or slowly, with states, masked and packed; against linear attention with one decay per
 * head; and itself with the sequence split. PRINT_ERRORS=1 prints the largest errors,
 * LONG_SEQUENCES=1 adds sequences of 4096 and 32 768 positions. */
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef TAPEGRAD_DOUBLE
#define GATED_LINEAR_TOLERANCE 1e-12
#define PARTS_TOLERANCE 1e-11
#define DRIFT_TOLERANCE 1e-10
#else
#define GATED_LINEAR_TOLERANCE 2e-5
#define PARTS_TOLERANCE 2e-5
#define DRIFT_TOLERANCE 2e-5 /* of a sum of 100 000 terms */
#endif

enum { QUERY, KEY, VALUE, LOG_DECAY, STATE, INPUTS, OUT = INPUTS, FINAL_STATE, RESULTS };

/* Every head has log decays of another size */
static const double mean_log_decay[] = { -0.001, -0.02, -0.5, -5, -20, -60 };
enum { HEADS = sizeof mean_log_decay / sizeof *mean_log_decay };

typedef struct GatedLinearCase {
    int64_t N, D, M;
    bool states, masked, packed; /* three sequences, two of them short */
} GatedLinearCase;

static int64_t sequences_of(const GatedLinearCase *c)
{
    return c->packed ? 3 : 1;
}

static Shape shape_of(const GatedLinearCase *c, int i)
{
    return i == STATE || i == FINAL_STATE
               ? shape(sequences_of(c), HEADS, c->D, c->M)
               : shape(1, c->N, HEADS, i == VALUE || i == OUT ? c->M : c->D);
}

/* Log decays of the head's mean, random per element; some are -infinity */
static Real *log_decays_of(const GatedLinearCase *c)
{
    const int64_t count = shape_count(shape_of(c, LOG_DECAY));
    Real *l = test_normal(31, count);
    for (int64_t k = 0; k < count; k++)
        l[k] = (Real)(mean_log_decay[k / c->D % HEADS] * 1.25 * fabs((double)l[k]));
    for (int64_t k = 37; k < count; k += 601)
        l[k] = -(Real)INFINITY;
    return l;
}

/* --------------------------------------------------------------------- the recurrence in double */

/* A head of one sequence, positions [begin, end), those from keys on masked; values and upstream
 * gradients, and results in double: of the tensors' shapes, with those of all heads */
typedef struct Recurrence {
    const GatedLinearCase *c;
    const Real *x[RESULTS]; /* inputs; dL/dout and dL/dfinal_state, or NULL */
    double *y[RESULTS];     /* gradients of the inputs; out and final_state */
    int64_t sequence, h, begin, end, keys;
} Recurrence;

/* The index of position i's row in a tensor of rows */
static int64_t row_at(const Recurrence *r, int of, int64_t i)
{
    return (i * HEADS + r->h) * shape_of(r->c, of).size[3];
}

static double decay_of(const Recurrence *r, int64_t i, int64_t d)
{
    return i < r->keys ? exp((double)r->x[LOG_DECAY][row_at(r, LOG_DECAY, i) + d]) : 1;
}

/* An element of a key or value; 0 for masked ones */
static double unmasked(const Recurrence *r, int of, int64_t i, int64_t k)
{
    return i < r->keys ? (double)r->x[of][row_at(r, of, i) + k] : 0;
}

/* Z [count, D, M], Z_i = diag(e^(l_i)) S_{i-1}; S [D, M] becomes S_N; out and dq */
static void recur_forward(const Recurrence *r, double *Z, double *S)
{
    const int64_t D = r->c->D, M = r->c->M;
    for (int64_t i = r->begin; i < r->end; i++) {
        const Real *q = r->x[QUERY] + row_at(r, QUERY, i), *g = r->x[OUT] + row_at(r, OUT, i);
        double *out = r->y[OUT] + row_at(r, OUT, i), *dq = r->y[QUERY] + row_at(r, QUERY, i);
        double *Z_i = Z + (i - r->begin) * D * M;
        memset(out, 0, (size_t)M * sizeof *out);
        for (int64_t d = 0; d < D; d++) {
            dq[d] = 0;
            for (int64_t m = 0; m < M; m++) {
                const int64_t k = d * M + m;
                Z_i[k] = decay_of(r, i, d) * S[k];
                S[k] = Z_i[k] + unmasked(r, KEY, i, d) * unmasked(r, VALUE, i, m);
                out[m] += (double)q[d] * S[k];
                dq[d] += S[k] * (double)g[m];
            }
        }
    }
}

/* dk, dv and dl_i = <Z_i, R_i>_d; R [D, M] becomes dL/dS_0 */
static void recur_backward(const Recurrence *r, const double *Z, double *R)
{
    const int64_t D = r->c->D, M = r->c->M;
    for (int64_t i = r->end - 1; i >= r->begin; i--) {
        const Real *q = r->x[QUERY] + row_at(r, QUERY, i), *g = r->x[OUT] + row_at(r, OUT, i);
        const double *Z_i = Z + (i - r->begin) * D * M;
        double *dk = r->y[KEY] + row_at(r, KEY, i), *dv = r->y[VALUE] + row_at(r, VALUE, i);
        double *dl = r->y[LOG_DECAY] + row_at(r, LOG_DECAY, i);
        memset(dv, 0, (size_t)M * sizeof *dv);
        for (int64_t d = 0; d < D; d++) {
            dk[d] = dl[d] = 0;
            for (int64_t m = 0; m < M; m++) {
                const int64_t k = d * M + m;
                R[k] += (double)q[d] * (double)g[m];
                dl[d] += i < r->keys ? Z_i[k] * R[k] : 0;
                dk[d] += i < r->keys ? R[k] * unmasked(r, VALUE, i, m) : 0;
                dv[m] += i < r->keys ? R[k] * unmasked(r, KEY, i, d) : 0;
                R[k] *= decay_of(r, i, d);
            }
        }
    }
}

static void recur(const Recurrence *r)
{
    const int64_t size = r->c->D * r->c->M, at = (r->sequence * HEADS + r->h) * size;
    double *Z = malloc((size_t)((r->end - r->begin) * size) * sizeof *Z);
    double *S = r->y[FINAL_STATE] + at, *R = r->y[STATE] + at;
    ck_assert(Z);
    for (int64_t k = 0; k < size; k++) {
        S[k] = r->x[STATE] ? (double)r->x[STATE][at + k] : 0;
        R[k] = r->x[FINAL_STATE] ? (double)r->x[FINAL_STATE][at + k] : 0;
    }
    recur_forward(r, Z, S);
    recur_backward(r, Z, R);
    free(Z);
}

/* ----------------------------------------------------------------------------------- comparison */

/* The head's elements of a result, or of an input's gradient, against the largest; and zeros. */
static void assert_head(const Recurrence *r, int of, const Real *actual)
{
    static const char *const names[] = { "dq", "dk", "dv", "dl", "dstate", "out", "final state" };
    const bool state = of == STATE || of == FINAL_STATE;
    const int64_t columns = state ? r->c->D * r->c->M : shape_of(r->c, of).size[3];
    const int64_t begin = state ? r->sequence : r->begin, end = state ? begin + 1 : r->end;
    double largest = 0, error = 0;
    for (int64_t i = begin; i < end; i++)
        for (int64_t k = 0; k < columns; k++) {
            const int64_t at = (i * HEADS + r->h) * columns + k;
            const double expected = r->y[of][at], difference = (double)actual[at] - expected;
            largest = fmax(largest, fabs(expected));
            error = fabs(difference) <= error ? error : fabs(difference); /* NaN is kept */
            if (of == LOG_DECAY &&
                (i >= r->keys || (i == r->begin && !r->c->states) || decay_of(r, i, k) == 0))
                ck_assert_msg(actual[at] == 0, "dl of position %d is %g, expected 0", (int)i,
                              (double)actual[at]);
        }
    if (getenv("PRINT_ERRORS"))
        printf("N %d mean %g: %s %.1e\n", (int)r->c->N, mean_log_decay[r->h], names[of],
               error / largest);
    else
        ck_assert_msg(error <= GATED_LINEAR_TOLERANCE * largest,
                      "mean %g: %s is off by %.2g of the largest", mean_log_decay[r->h], names[of],
                      error / largest);
}

static void assert_recurrence(Recurrence r, Tensor *const results[RESULTS], const int32_t *offsets,
                              int64_t keys)
{
    for (int i = 0; i < RESULTS; i++) {
        r.y[i] = malloc((size_t)shape_count(shape_of(r.c, i)) * sizeof *r.y[i]);
        ck_assert(r.y[i]);
    }
    for (r.sequence = 0; r.sequence < sequences_of(r.c); r.sequence++)
        for (r.h = 0; r.h < HEADS; r.h++) {
            r.begin = offsets[r.sequence];
            r.end = offsets[r.sequence + 1];
            r.keys = keys ? keys : r.end;
            recur(&r);
            for (int i = 0; i < RESULTS; i++)
                if (results[i])
                    assert_head(&r, i, test_values(results[i]));
        }
    for (int i = 0; i < RESULTS; i++)
        free(r.y[i]);
}

static void check_case(Device *device, GatedLinearCase c)
{
    const int32_t N = (int32_t)c.N, lengths[] = { N - N / 4 };
    const int32_t packed[] = { 0, N / 3, N / 3 + 1, N }, whole[] = { 0, N };
    Tape *tape = tape_new(device);
    Tensor *x[INPUTS] = { 0 }, *results[RESULTS] = { 0 };
    for (int i = 0; i < INPUTS; i++) {
        const int64_t count = shape_count(shape_of(&c, i));
        if (i != STATE || c.states)
            x[i] = tape_variable(
                tape, i == LOG_DECAY ? log_decays_of(&c) : test_normal((uint64_t)i + 1, count),
                shape_of(&c, i));
    }
    GatedLinearAttentionOptions options = { .state = x[STATE] };
    if (c.packed)
        options.offsets = tape_input_i32(tape, packed, shape(4));
    if (c.masked)
        options.key_lengths = tape_input_i32(tape, lengths, shape(1));
    results[OUT] = op_gated_linear_attention(tape, x[QUERY], x[KEY], x[VALUE], x[LOG_DECAY],
                                             options, &results[FINAL_STATE]);
    Recurrence r = { .c = &c };
    Tensor *sum = NULL;
    for (int i = OUT; i <= (c.states ? FINAL_STATE : OUT); i++) {
        const Shape of = shape_of(&c, i);
        Tensor *g = tape_input(tape, test_normal((uint64_t)i + 20, shape_count(of)), of);
        Tensor *part = op_sum(tape, op_multiply(tape, results[i], g), ALL_AXES);
        r.x[i] = test_values(g);
        sum = sum ? op_add(tape, sum, part) : part;
    }
    tensor_keep(results[OUT]);
    tensor_keep(results[FINAL_STATE]);
    tape_backward(tape, sum);
    for (int i = 0; i < INPUTS; i++) {
        r.x[i] = x[i] ? test_values(x[i]) : NULL;
        results[i] = x[i] ? tensor_gradient(x[i]) : NULL;
    }
    assert_recurrence(r, results, c.packed ? packed : whole, c.masked ? *lengths : 0);
    tape_free(tape);
    test_forget();
}

static void check_all_cases(Device *device)
{
    const GatedLinearCase any = { .N = 700, .D = 8, .M = 5 };
    GatedLinearCase states = any, masked = any, packed = any, wide = { .N = 333, .D = 40, .M = 24 };
    states.states = masked.states = packed.states = wide.states = true;
    masked.masked = packed.packed = true;
    check_case(device, any);
    check_case(device, states);
    check_case(device, masked);
    check_case(device, packed);
    check_case(device, wide);
    for (wide.N = 4096; getenv("LONG_SEQUENCES") && wide.N <= 32768; wide.N *= 8)
        check_case(device, wide);
}

TEST(results_and_gradients_equal_the_recurrence)
{
    check_all_cases(test_device());
}

TEST(plain_results_and_gradients_equal_the_recurrence)
{
    check_all_cases(device_open("plain"));
}

/* ----------------------------------------------------------------------- against the same maths */

enum { B = 2, N = 77, H = 2, D = 12, M = 20 };

static Shape small_shape(int i)
{
    return i == STATE ? shape(B, H, D, M) : shape(B, N, H, i == VALUE ? M : D);
}

/* Random inputs with log decays in [-1, 0] */
static void random_inputs(Tape *tape, Tensor *x[INPUTS])
{
    for (int i = 0; i < INPUTS; i++) {
        const int64_t count = shape_count(small_shape(i));
        Real *values = test_normal((uint64_t)i + 1, count);
        for (int64_t k = 0; k < count && i == LOG_DECAY; k++)
            values[k] = -(Real)fabs(sin((double)values[k]));
        x[i] = tape_variable(tape, values, small_shape(i));
    }
}

/* The gradients of sum(out g) + sum(state h) */
static void backward_from_both(Tape *tape, Tensor *out, Tensor *state)
{
    Tensor *g = tape_input(tape, test_normal(20, tensor_count(out)), out->shape);
    Tensor *h = tape_input(tape, test_normal(21, tensor_count(state)), state->shape);
    tensor_keep(out);
    tensor_keep(state);
    tape_backward(tape, op_add(tape, op_sum(tape, op_multiply(tape, out, g), ALL_AXES),
                               op_sum(tape, op_multiply(tape, state, h), ALL_AXES)));
}

static void assert_same(Tensor *const a[RESULTS], Tensor *const b[RESULTS])
{
    for (int i = 0; i < RESULTS; i++) {
        Tensor *x = i < INPUTS ? tensor_gradient(a[i]) : a[i];
        Tensor *y = i < INPUTS ? tensor_gradient(b[i]) : b[i];
        assert_close(test_values(x), test_values(y), tensor_count(x), PARTS_TOLERANCE);
    }
}

/* Results and gradients, the sequence split into parts with the state passed on */
static Tape *run_parts(int64_t part, Tensor *results[RESULTS])
{
    Tape *tape = tape_new(test_device());
    Tensor *parts[N], *state;
    int count = 0;
    random_inputs(tape, results);
    state = results[STATE];
    for (int64_t begin = 0; begin < N; begin += part, count++) {
        Tensor *x[STATE];
        for (int i = 0; i < STATE; i++)
            x[i] = op_slice(tape, results[i], 1, begin, begin + part < N ? part : N - begin);
        parts[count] =
            op_gated_linear_attention(tape, x[QUERY], x[KEY], x[VALUE], x[LOG_DECAY],
                                      (GatedLinearAttentionOptions){ .state = state }, &state);
    }
    results[OUT] = op_concat(tape, parts, count, 1);
    results[FINAL_STATE] = state;
    backward_from_both(tape, results[OUT], state);
    return tape;
}

/* One position at a time is how a model generates. */
TEST(parts_equal_the_whole)
{
    static const int64_t parts[] = { 1, 7, 32, 64 };
    Tensor *whole[RESULTS], *split[RESULTS];
    Tape *first = run_parts(N, whole);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        Tape *tape = run_parts(parts[i], split);
        assert_same(whole, split);
        tape_free(tape);
    }
    tape_free(first);
}

TEST(equal_decays_are_those_of_linear_attention)
{
    Tape *other = tape_new(test_device()), *tape = tape_new(test_device());
    Tensor *a[RESULTS], *b[RESULTS];
    random_inputs(other, a);
    Tensor *l = op_slice(other, a[LOG_DECAY], 3, 0, 1);
    a[OUT] = op_gated_linear_attention(
        other, a[QUERY], a[KEY], a[VALUE], op_broadcast_to(other, l, small_shape(LOG_DECAY)),
        (GatedLinearAttentionOptions){ .state = a[STATE] }, &a[FINAL_STATE]);
    backward_from_both(other, a[OUT], a[FINAL_STATE]);
    random_inputs(tape, b);
    l = op_reshape(tape, op_slice(tape, b[LOG_DECAY], 3, 0, 1), shape(B, N, H));
    b[OUT] =
        op_causal_linear_attention(tape, b[QUERY], b[KEY], b[VALUE],
                                   (CausalLinearAttentionOptions){ .features = FEATURE_MAP_IDENTITY,
                                                                   .unnormalized = true,
                                                                   .log_decay = l,
                                                                   .state = b[STATE] },
                                   &b[FINAL_STATE]);
    backward_from_both(tape, b[OUT], b[FINAL_STATE]);
    assert_same(a, b);
    tape_free(other);
    tape_free(tape);
}

/* A product of 100 000 rounded e^(l_i) would be off by 1e-4 to 1e-3. Both directions: the state,
 * and the gradient of the one before. */
TEST(weak_decays_do_not_drift)
{
    enum { COUNT = 100000, SIZE = 4, STATES = SIZE * SIZE };
    static const Real log_decay[SIZE] = { (Real)-1e-5, (Real)-3e-6, (Real)-2e-5, (Real)-1e-4 };
    const Shape rows = shape(1, COUNT, 1, SIZE);
    Tape *tape = tape_new(test_device());
    Real *k = test_normal(1, COUNT * SIZE), *v = test_normal(2, COUNT * SIZE);
    Real *l = test_zeros(COUNT * SIZE);
    double expected[2][STATES] = { 0 };
    for (int64_t i = 0; i < COUNT * SIZE; i++)
        l[i] = log_decay[i % SIZE];
    for (int64_t i = 0; i < COUNT; i++)
        for (int64_t c = 0; c < STATES; c++) {
            const int64_t d = c / SIZE, m = c % SIZE, t = COUNT - 1 - i;
            const double decay = exp((double)log_decay[d]);
            expected[0][c] =
                decay * expected[0][c] + (double)k[i * SIZE + d] * (double)v[i * SIZE + m];
            expected[1][c] =
                decay * (expected[1][c] + (double)k[t * SIZE + d] * (double)v[t * SIZE + m]);
        }
    Tensor *key = tape_input(tape, k, rows), *value = tape_input(tape, v, rows), *after;
    Tensor *before = tape_variable(tape, test_zeros(STATES), shape(1, 1, SIZE, SIZE));
    Tensor *out =
        op_gated_linear_attention(tape, key, key, value, tape_input(tape, l, rows),
                                  (GatedLinearAttentionOptions){ .state = before }, &after);
    tensor_keep(after);
    tape_backward_from(tape, out, value);
    const Real *results[] = { test_values(after), test_values(tensor_gradient(before)) };
    for (int of = 0; of < 2; of++) {
        double largest = 0, error = 0;
        for (int64_t c = 0; c < STATES; c++) {
            largest = fmax(largest, fabs(expected[of][c]));
            error = fmax(error, fabs((double)results[of][c] - expected[of][c]));
        }
        if (getenv("PRINT_ERRORS"))
            printf("drift %.1e\n", error / largest);
        ck_assert_msg(error <= DRIFT_TOLERANCE * largest, "%s is off by %.2g of the largest",
                      of ? "gradient" : "state", error / largest);
    }
    tape_free(tape);
}

/* ------------------------------------------------------------------------------------ sentences */

/* -infinity is a log decay, and not what tape_check_finite searches for; NaN is. */
TEST(a_log_decay_of_minus_infinity_passes_the_search)
{
    for (int nan = 0; nan < 2; nan++) {
        Tape *tape = tape_new(test_device());
        Real values[2 * 3] = { 1, 2, 3, 4, 5, 6 }, l[2 * 3] = { [4] = -(Real)INFINITY };
        if (nan)
            l[5] = (Real)NAN;
        const GatedLinearAttentionOptions none = { 0 };
        Tensor *x = tape_variable(tape, values, shape(1, 2, 1, 3));
        Tensor *log_decay = tape_variable(tape, l, shape(1, 2, 1, 3));
        tape_check_finite(tape, true);
        if (nan)
            assert_raises("op_gated_linear_attention: input 5 is [1,2,1,3], and its element 5 is "
                          "nan",
                          op_gated_linear_attention(tape, x, x, x, log_decay, none, NULL));
        else
            tape_backward(
                tape, op_sum(tape, op_gated_linear_attention(tape, x, x, x, log_decay, none, NULL),
                             ALL_AXES));
        tape_free(tape);
    }
}

TEST(misuse_raises)
{
    Tape *tape = tape_new(test_device());
    Real *values = test_zeros(60);
    const GatedLinearAttentionOptions none = { 0 };
    Tensor *x = tape_input(tape, values, shape(2, 5, 2, 3));
    Tensor *per_head = tape_input(tape, values, shape(2, 5, 2));
    Tensor *one = tape_input(tape, values, shape(1, 20, 1, 3));
    Tensor *offsets = tape_input_i32(tape, (int32_t[]){ 0, 3, 19 }, shape(3));
    Tensor *lengths = tape_input_i32(tape, (int32_t[]){ 5, 6 }, shape(2));
    assert_raises("op_gated_linear_attention: query is NULL",
                  op_gated_linear_attention(tape, NULL, x, x, x, none, NULL));
    assert_raises("op_gated_linear_attention: log_decay is NULL",
                  op_gated_linear_attention(tape, x, x, x, NULL, none, NULL));
    assert_raises("op_gated_linear_attention: log_decay is [2,5,2], expected [2,5,2,3]: one per "
                  "position, head and element of the keys",
                  op_gated_linear_attention(tape, x, x, x, per_head, none, NULL));
    assert_raises(
        "op_gated_linear_attention: state is [2,5,2,3], expected [2,2,3,3]: [sequences, H, D, M]",
        op_gated_linear_attention(tape, x, x, x, x, (GatedLinearAttentionOptions){ .state = x },
                                  NULL));
    assert_raises("op_gated_linear_attention: key_lengths[1] is 6, expected 1 to 5, the number of "
                  "keys",
                  op_gated_linear_attention(tape, x, x, x, x,
                                            (GatedLinearAttentionOptions){ .key_lengths = lengths },
                                            NULL));
    assert_raises("op_gated_linear_attention: offsets[2] is 19, expected ascending numbers from 0 "
                  "to 20, the number of positions",
                  op_gated_linear_attention(tape, one, one, one, one,
                                            (GatedLinearAttentionOptions){ .offsets = offsets },
                                            NULL));
    if (!device_is_cuda(test_device())) {
        values[7] = (Real)0.5;
        Tensor *positive = tape_input(tape, values, x->shape);
        assert_raises("op_gated_linear_attention: log_decay[7] is 0.5, expected 0 or less",
                      op_gated_linear_attention(tape, x, x, x, positive, none, NULL));
    }
    tape_free(tape);
}

TEST(misuse_of_the_kind_raises)
{
    Params *params = params_new(test_device(), 1);
    assert_raises(
        "nn_gated_linear_attention: decay_rank is -1, expected 1 to 1048576, or 0 for the "
        "default",
        nn_gated_linear_attention(params, (GatedLinearConfig){ .decay_rank = -1 }));
    assert_raises("nn_gated_linear_attention: temperature is -2, expected more than 0, and finite, "
                  "or 0 for 16",
                  nn_gated_linear_attention(params, (GatedLinearConfig){ .temperature = -2 }));
    assert_raises(
        "nn_gated_linear_attention: temperature is inf, expected more than 0, and "
        "finite, or 0 for 16",
        nn_gated_linear_attention(params, (GatedLinearConfig){ .temperature = INFINITY }));
    params_free(params);
}

int main(void)
{
    return test_main("gated linear attention", NULL, NULL);
}
