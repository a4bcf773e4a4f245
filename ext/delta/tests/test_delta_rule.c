/* The delta rule against what it says of beta and strong decays, the plain kernels, and itself with
 * the sequence split. */
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef TAPEGRAD_DOUBLE
#define DELTA_TOLERANCE 1e-10
#else
#define DELTA_TOLERANCE 2e-5
#endif

enum { QUERY, KEY, VALUE, BETA, LOG_DECAY, STATE, INPUTS };

/* sum(out g) + sum(final_state h), whose gradients by out and final_state are g and h */
static void backward_from_both(Tape *tape, Tensor *out, Tensor *g, Tensor *final_state, Tensor *h)
{
    Tensor *sum = op_add(tape, op_sum(tape, op_multiply(tape, out, g), ALL_AXES),
                         op_sum(tape, op_multiply(tape, final_state, h), ALL_AXES));
    tape_backward(tape, sum);
}

/* ------------------------------------------------------------------------------------ sequences */

enum { B = 2, N = 77, H = 2, D = 12, M = 20 };

/* Log decays per position and head: 1, or one per key dimension */
static int64_t decays = 1;
#define EACH_DECAYS for (decays = 1; decays <= D; decays += D - 1)

/* Random inputs: keys of length 1, betas in [0, 2], log decays in [-1, 0]. */
static Shape shape_of_length(int input, int64_t length)
{
    return input == STATE                      ? shape(B, H, D, M)
           : input == VALUE                    ? shape(B, length, H, M)
           : input < VALUE                     ? shape(B, length, H, D)
           : input == LOG_DECAY && decays == D ? shape(B, length, H, D)
                                               : shape(B, length, H);
}

static Shape shape_of(int input)
{
    return shape_of_length(input, N);
}

static Real *values_of(int input, int64_t length)
{
    const int64_t count = shape_count(shape_of_length(input, length));
    Real *values = test_normal((uint64_t)input + 1, count);
    for (int64_t i = 0; i < count && input == KEY; i += D) {
        double square = 0;
        for (int64_t d = 0; d < D; d++)
            square += (double)values[i + d] * (double)values[i + d];
        for (int64_t d = 0; d < D; d++)
            values[i + d] = (Real)((double)values[i + d] / sqrt(square));
    }
    for (int64_t i = 0; i < count && input == BETA; i++)
        values[i] = (Real)(1 + sin((double)values[i]));
    for (int64_t i = 0; i < count && input == LOG_DECAY; i++)
        values[i] = -(Real)fabs(sin((double)values[i]));
    return values;
}

typedef struct Results {
    Tape *tape;
    Tensor *x[INPUTS], *out, *final_state;
} Results;

/* Results and gradients of inputs with these values, the sequence split into parts of `part`
 * positions with the state passed on. */
static Results run_parts(Device *device, Real *const values[INPUTS], int64_t part)
{
    Results r = { .tape = tape_new(device) };
    Tensor *parts[N];
    int count = 0;
    for (int i = 0; i < INPUTS; i++)
        r.x[i] = tape_variable(r.tape, values[i], shape_of(i));
    r.final_state = r.x[STATE];
    for (int64_t begin = 0; begin < N; begin += part, count++) {
        Tensor *x[STATE];
        const int64_t end = begin + part < N ? begin + part : N;
        for (int i = 0; i < STATE; i++)
            x[i] = op_slice(r.tape, r.x[i], 1, begin, end - begin);
        const DeltaRuleOptions options = { .log_decay = x[LOG_DECAY], .state = r.final_state };
        parts[count] =
            op_delta_rule(r.tape, x[QUERY], x[KEY], x[VALUE], x[BETA], options, &r.final_state);
    }
    r.out = op_concat(r.tape, parts, count, 1);
    Tensor *g = tape_input(r.tape, test_normal(20, B * N * H * M), r.out->shape);
    Tensor *h = tape_input(r.tape, test_normal(21, B * H * D * M), shape_of(STATE));
    tensor_keep(r.out);
    tensor_keep(r.final_state);
    backward_from_both(r.tape, r.out, g, r.final_state, h);
    return r;
}

static void all_values(Real *values[INPUTS])
{
    for (int i = 0; i < INPUTS; i++)
        values[i] = values_of(i, N);
}

static void assert_same_results(Results a, Results b)
{
    assert_close(test_values(a.out), test_values(b.out), tensor_count(a.out), DELTA_TOLERANCE);
    assert_close(test_values(a.final_state), test_values(b.final_state),
                 tensor_count(a.final_state), DELTA_TOLERANCE);
    for (int i = 0; i < INPUTS; i++)
        assert_close(test_values(tensor_gradient(a.x[i])), test_values(tensor_gradient(b.x[i])),
                     tensor_count(a.x[i]), DELTA_TOLERANCE);
    tape_free(b.tape);
}

/* One position at a time is how a model generates. */
TEST(parts_equal_the_whole)
{
    static const int64_t parts[] = { 1, 7, 32, 50 };
    Real *values[INPUTS];
    EACH_DECAYS
    {
        all_values(values);
        const Results whole = run_parts(test_device(), values, N);
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            assert_same_results(whole, run_parts(test_device(), values, parts[i]));
        tape_free(whole.tape);
    }
}

/* Betas at the ends of their range, and decays to nothing, in the midst of others. */
TEST(extreme_gates_match_plain)
{
    Real *values[INPUTS];
    EACH_DECAYS
    {
        all_values(values);
        for (int64_t i = 0; i < B * N * H; i++)
            if (i % 5 < 3)
                values[BETA][i] = (Real)(i % 5);
        for (int64_t i = 0; i < B * N * H * decays; i++) {
            if (i % 11 == 0)
                values[LOG_DECAY][i] = -1000;
            if (i % 7 == 0)
                values[LOG_DECAY][i] = 0;
        }
        const Results plain = run_parts(device_open("plain"), values, N);
        assert_same_results(plain, run_parts(test_device(), values, N));
        tape_free(plain.tape);
    }
}

/* With gradients; the one's is the sum of the others'. */
TEST(equal_decays_of_all_key_dimensions_are_one)
{
    Real *values[INPUTS], sums[B * N * H];
    all_values(values);
    const Results one = run_parts(test_device(), values, N);
    const Real *l = values[LOG_DECAY];
    decays = D;
    values[LOG_DECAY] = test_zeros(B * N * H * D);
    for (int64_t i = 0; i < B * N * H * D; i++)
        values[LOG_DECAY][i] = l[i / D];
    Results each = run_parts(test_device(), values, N);
    const Real *dl = test_values(tensor_gradient(each.x[LOG_DECAY]));
    for (int64_t r = 0; r < B * N * H; r++) {
        double sum = 0;
        for (int64_t d = 0; d < D; d++)
            sum += (double)dl[r * D + d];
        sums[r] = (Real)sum;
    }
    assert_close(sums, test_values(tensor_gradient(one.x[LOG_DECAY])), B * N * H, DELTA_TOLERANCE);
    each.x[LOG_DECAY] = each.x[BETA]; /* compared above */
    Results expected = one;
    expected.x[LOG_DECAY] = one.x[BETA];
    assert_same_results(expected, each);
    tape_free(one.tape);
}

/* out of one head's values, without a final state */
static Tensor *correct(Tape *tape, Real *const values[INPUTS], DeltaRuleOptions options,
                       Tensor **final_state)
{
    Tensor *x[INPUTS];
    for (int i = 0; i < INPUTS; i++)
        x[i] = tape_input(tape, values[i], shape_of(i));
    options.state = x[STATE];
    options.log_decay = options.log_decay ? x[LOG_DECAY] : NULL;
    return op_delta_rule(tape, x[QUERY], x[KEY], x[VALUE], x[BETA], options, final_state);
}

static void set_all(Real *values, int64_t count, Real value)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = value;
}

TEST(beta_0_keeps_the_state)
{
    Tape *tape = tape_new(test_device());
    Tensor *after;
    Real *values[INPUTS];
    all_values(values);
    set_all(values[BETA], B * N * H, 0);
    correct(tape, values, (DeltaRuleOptions){ 0 }, &after);
    assert_close(test_values(after), values[STATE], B * H * D * M, 0);
    tape_free(tape);
}

/* e^-86 is a normal number, and a hundredth of it is not: on the CPU it is slow. */
static bool holds_subnormal_number(Tensor *x)
{
    const Real *values = test_values(x);
    for (int64_t i = 0; i < tensor_count(x); i++)
        if (fpclassify(values[i]) == FP_SUBNORMAL)
            return true;
    return false;
}

TEST(strong_decays_leave_no_subnormal_states)
{
    for (int per_key = 0; per_key < 2 && !strcmp(device_name(test_device()), "cpu"); per_key++) {
        Tape *tape = tape_new(test_device());
        Real state[2 * 3], key[2] = { 0 }, beta[1] = { 1 }, l[2] = { -86, -86 };
        set_all(state, 2 * 3, (Real)0.01);
        Tensor *k = tape_input(tape, key, shape(1, 1, 1, 2)), *after;
        Tensor *v = tape_input(tape, state, shape(1, 1, 1, 3));
        const DeltaRuleOptions options = {
            .log_decay = tape_input(tape, l, per_key ? shape(1, 1, 1, 2) : shape(1, 1, 1)),
            .state = tape_input(tape, state, shape(1, 1, 2, 3))
        };
        op_delta_rule(tape, k, k, v, tape_input(tape, beta, shape(1, 1, 1)), options, &after);
        ck_assert(!holds_subnormal_number(after));
        tape_free(tape);
    }
}

TEST(beta_1_stores_the_value_of_a_key)
{
    Tape *tape = tape_new(test_device());
    Tensor *after;
    Real *values[INPUTS];
    all_values(values);
    set_all(values[BETA], B * N * H, 1);
    values[QUERY] = values[KEY];
    Tensor *out = correct(tape, values, (DeltaRuleOptions){ 0 }, &after);
    assert_close(test_values(out), values[VALUE], B * N * H * M, DELTA_TOLERANCE);
    tape_free(tape);
}

/* With beta 2 and values 0, S_i = (I - 2 k k^T) S_{i-1}: a reflection. */
TEST(beta_2_reflects_the_state)
{
    Tape *tape = tape_new(test_device());
    Tensor *after;
    Real *values[INPUTS];
    double before = 0, now = 0;
    all_values(values);
    set_all(values[BETA], B * N * H, 2);
    set_all(values[VALUE], B * N * H * M, 0);
    correct(tape, values, (DeltaRuleOptions){ 0 }, &after);
    const Real *S = test_values(after);
    for (int64_t i = 0; i < B * H * D * M; i++) {
        before += (double)values[STATE][i] * (double)values[STATE][i];
        now += (double)S[i] * (double)S[i];
    }
    ck_assert_double_le(fabs(now / before - 1), DELTA_TOLERANCE);
    tape_free(tape);
}

/* out_i = beta_i (q_i.k_j) v_i: nothing is left of earlier positions. */
static void check_forgetting(void)
{
    Tape *tape = tape_new(test_device());
    Tensor *after;
    Real *values[INPUTS], expected[B * N * H * M];
    all_values(values);
    set_all(values[LOG_DECAY], B * N * H * decays, -1000);
    for (int64_t r = 0; r < B * N * H; r++) {
        double qk = 0;
        for (int64_t d = 0; d < D; d++)
            qk += (double)values[QUERY][r * D + d] * (double)values[KEY][r * D + d];
        for (int64_t m = 0; m < M; m++)
            expected[r * M + m] =
                (Real)((double)values[BETA][r] * qk * (double)values[VALUE][r * M + m]);
    }
    Tensor *any = tape_input(tape, values[LOG_DECAY], shape_of(LOG_DECAY));
    Tensor *out = correct(tape, values, (DeltaRuleOptions){ .log_decay = any }, &after);
    assert_close(test_values(out), expected, B * N * H * M, DELTA_TOLERANCE);
    tape_free(tape);
}

TEST(a_decay_of_minus_1000_forgets_all)
{
    EACH_DECAYS
    check_forgetting();
}

/* -------------------------------------------------------------------- the log decay's gradient */

#ifdef TAPEGRAD_DOUBLE
#define DECAY_TOLERANCE 1e-12
#else
#define DECAY_TOLERANCE 2e-5
#endif

enum { LONG = 1100, LENGTHS = 1, OFFSETS, FORMS }; /* positions; forms: see decay_options */
static const int32_t decay_lengths[B] = { LONG, LONG - 45 };
static const int32_t decay_offsets[B + 1] = { 0, LONG + 100, 2 * LONG };

/* Two sequences of LONG positions, or of other lengths: padded or concatenated. */
static DeltaRuleOptions decay_options(Tape *tape, int form)
{
    DeltaRuleOptions options = { 0 };
    if (form == LENGTHS)
        options.key_lengths = tape_input_i32(tape, decay_lengths, shape(B));
    if (form == OFFSETS)
        options.offsets = tape_input_i32(tape, decay_offsets, shape(B + 1));
    return options;
}

/* Log decays: constant in the last head; exponentially distributed in the other, each 97th position
 * -infinity, in other positions per key dimension. */
static Real *decays_of_mean(double mean)
{
    Real *l = values_of(LOG_DECAY, LONG);
    for (int64_t i = 0; i < B * LONG * H * decays; i++) {
        const int64_t row = i / decays;
        const double random = -log(1 - fabs((double)l[i]) / 1.0001);
        l[i] = (Real)(row % H == H - 1                         ? mean
                      : (row / H + 5 * (i % decays)) % 97 == 0 ? -INFINITY
                                                               : mean * random);
    }
    return l;
}

/* One head of one sequence in double; states [D, M]. */
typedef struct Reference {
    Real *const *values; /* of the inputs, [.., LONG, H, ..] */
    const Real *dout, *dfinal_state;
    int64_t b, h, begin, end, keys;
    double *S; /* S_{i-1} for i from begin to end */
} Reference;

/* The elements of the input at position i. */
static const Real *reference_row(const Reference *r, int input, int64_t i)
{
    const int64_t size = input == VALUE ? M : input < VALUE ? D : input == LOG_DECAY ? decays : 1;
    return r->values[input] + (i * H + r->h) * size;
}

/* e^(l_i) of row d */
static double reference_decay(const Reference *r, int64_t i, int64_t d)
{
    return i < r->keys ? exp((double)reference_row(r, LOG_DECAY, i)[decays == 1 ? 0 : d]) : 1;
}

/* x = (E_i S_{i-1})^T k_i */
static void reference_read(const Reference *r, int64_t i, double x[M])
{
    const double *S = r->S + (i - r->begin) * D * M;
    const Real *k = reference_row(r, KEY, i);
    for (int64_t m = 0; m < M; m++)
        x[m] = 0;
    for (int64_t d = 0; d < D; d++) {
        const double w = reference_decay(r, i, d);
        for (int64_t m = 0; m < M; m++)
            x[m] += w * S[d * M + m] * (double)k[d];
    }
}

static void reference_states(const Reference *r)
{
    const Real *state = r->values[STATE] + (r->b * H + r->h) * D * M;
    double x[M];
    for (int64_t c = 0; c < D * M; c++)
        r->S[c] = (double)state[c];
    for (int64_t i = r->begin; i < r->end; i++) {
        double *S = r->S + (i - r->begin) * D * M;
        const Real *k = reference_row(r, KEY, i), *v = reference_row(r, VALUE, i);
        const double beta = i < r->keys ? (double)*reference_row(r, BETA, i) : 0;
        reference_read(r, i, x);
        for (int64_t c = 0; c < D * M; c++)
            S[D * M + c] = reference_decay(r, i, c / M) * S[c] +
                           beta * (double)k[c / M] * ((double)v[c % M] - x[c % M]);
    }
}

/* dl_i = <E_i S_{i-1}, P_i>, P_i = R_i - beta_i k_i (R_i^T k_i)^T, of all rows or each, into
 * [.., LONG, H, decays] */
static void reference_gradient(const Reference *r, double *dl)
{
    double R[D * M];
    for (int64_t c = 0; c < D * M; c++)
        R[c] = (double)r->dfinal_state[(r->b * H + r->h) * D * M + c];
    for (int64_t i = r->end - 1; i >= r->begin; i--) {
        const double *S = r->S + (i - r->begin) * D * M;
        const double beta = i < r->keys ? (double)*reference_row(r, BETA, i) : 0;
        const Real *q = reference_row(r, QUERY, i), *k = reference_row(r, KEY, i);
        const Real *g = r->dout + (i * H + r->h) * M;
        double du[M] = { 0 }, *dl_i = dl + (i * H + r->h) * decays;
        for (int64_t c = 0; c < D * M; c++) {
            R[c] += (double)q[c / M] * (double)g[c % M];
            du[c % M] += R[c] * (double)k[c / M];
        }
        for (int64_t d = 0; d < decays; d++)
            dl_i[d] = 0;
        for (int64_t c = 0; c < D * M; c++) {
            R[c] = reference_decay(r, i, c / M) * (R[c] - beta * (double)k[c / M] * du[c % M]);
            dl_i[decays == 1 ? 0 : c / M] += i < r->keys ? S[c] * R[c] : 0;
        }
    }
}

/* Each element within the tolerance of the head's largest, the head's sum within half of it of the
 * sum of magnitudes, and 0 where the state is forgotten or the position masked. */
static void assert_decay_gradient(const Real *dl, const double *expected, const Reference *r)
{
    double error = 0, max = 0, sum = 0, magnitudes = 0;
    for (int64_t c = r->begin * decays; c < r->end * decays; c++) {
        const int64_t i = c / decays, d = c % decays, at = (i * H + r->h) * decays + d;
        const double difference = (double)dl[at] - expected[at];
        if (i >= r->keys || isinf(reference_row(r, LOG_DECAY, i)[d]))
            ck_assert_msg(dl[at] == 0, "position %d: %g, expected 0", (int)i, (double)dl[at]);
        error = fabs(difference) <= error ? error : fabs(difference); /* NaN is kept */
        max = fmax(max, fabs(expected[at]));
        sum += difference;
        magnitudes += fabs(expected[at]);
    }
    ck_assert_msg(error <= DECAY_TOLERANCE * max, "an element is off by %g of the largest",
                  error / max);
    ck_assert_msg(fabs(sum) <= DECAY_TOLERANCE / 2 * magnitudes,
                  "the sum is off by %g of the magnitudes'", sum / magnitudes);
}

/* out_i = S_i^T q_i, within the tolerance of the head's largest */
static void assert_out(const Real *out, const Reference *r)
{
    double error = 0, max = 0;
    for (int64_t i = r->begin; i < r->end; i++) {
        const double *S = r->S + (i + 1 - r->begin) * D * M;
        for (int64_t m = 0; m < M; m++) {
            double expected = 0;
            for (int64_t d = 0; d < D; d++)
                expected += S[d * M + m] * (double)reference_row(r, QUERY, i)[d];
            const double difference = fabs((double)out[(i * H + r->h) * M + m] - expected);
            error = difference <= error ? error : difference;
            max = fmax(max, fabs(expected));
        }
    }
    ck_assert_msg(error <= DELTA_TOLERANCE * max, "out is off by %g of the largest", error / max);
}

/* The log decay's gradient from outputs and final state; *out_values: the outputs */
static Real *decay_gradient(Device *device, Real *const values[INPUTS], int form, const Real *dout,
                            const Real *dfinal_state, Real **out_values)
{
    Tape *tape = tape_new(device);
    Tensor *x[INPUTS], *final_state;
    for (int i = 0; i < INPUTS; i++) {
        Shape s = shape_of_length(i, LONG);
        if (form == OFFSETS && i != STATE) {
            s.size[0] = 1;
            s.size[1] = B * LONG;
        }
        x[i] = tape_variable(tape, values[i], s);
    }
    DeltaRuleOptions options = decay_options(tape, form);
    options.log_decay = x[LOG_DECAY];
    options.state = x[STATE];
    Tensor *out = op_delta_rule(tape, x[QUERY], x[KEY], x[VALUE], x[BETA], options, &final_state);
    *out_values = test_values(out);
    backward_from_both(tape, out, tape_input(tape, dout, out->shape), final_state,
                       tape_input(tape, dfinal_state, final_state->shape));
    Real *dl = test_values(tensor_gradient(x[LOG_DECAY]));
    tape_free(tape);
    return dl;
}

/* A sum of q.dq - v.dv loses all digits for a mean of -60, and 3 of 7 for -1. */
static void check_decay_gradient(double mean, int form)
{
    Real *values[INPUTS];
    for (int i = 0; i < INPUTS; i++)
        values[i] = i == LOG_DECAY ? decays_of_mean(mean) : values_of(i, LONG);
    Reference r = { .values = values,
                    .dout = test_normal(20, B * LONG * H * M),
                    .dfinal_state = test_normal(21, B * H * D * M) };
    double *expected = malloc((size_t)(B * LONG * H * decays) * sizeof *expected);
    r.S = malloc((LONG + 101) * D * M * sizeof *r.S);
    ck_assert(expected && r.S);
    Device *const devices[] = { device_open("plain"), test_device() };
    for (int device = 0; device < 2; device++) {
        Real *out;
        const Real *dl =
            decay_gradient(devices[device], values, form, r.dout, r.dfinal_state, &out);
        for (int64_t head = 0; head < B * H; head++) {
            r.b = head / H;
            r.h = head % H;
            r.begin = form == OFFSETS ? decay_offsets[r.b] : r.b * LONG;
            r.end = form == OFFSETS ? decay_offsets[r.b + 1] : r.begin + LONG;
            r.keys = form == LENGTHS ? r.begin + decay_lengths[r.b] : r.end;
            reference_states(&r);
            assert_out(out, &r);
            reference_gradient(&r, expected);
            assert_decay_gradient(dl, expected, &r);
        }
    }
    free(r.S);
    free(expected);
    test_forget();
}

TEST(the_log_decays_gradient_keeps_its_digits)
{
    static const double means[] = { -0.001, -0.05, -1, -5, -60 };
    EACH_DECAYS
    for (size_t i = 0; i < sizeof means / sizeof *means; i++)
        for (int form = 0; form < FORMS; form++)
            check_decay_gradient(means[i], form);
}

static void check_gradient_without_a_past(void)
{
    Tape *tape = tape_new(test_device());
    Tensor *x[STATE];
    Real *values[INPUTS];
    all_values(values);
    for (int i = 0; i < STATE; i++)
        x[i] = tape_variable(tape, values[i], shape_of(i));
    const DeltaRuleOptions options = { .log_decay = x[LOG_DECAY] };
    Tensor *out = op_delta_rule(tape, x[QUERY], x[KEY], x[VALUE], x[BETA], options, NULL);
    tape_backward(tape, op_sum(tape, op_multiply(tape, out, out), ALL_AXES));
    const Real *dl = test_values(tensor_gradient(x[LOG_DECAY]));
    for (int64_t i = 0; i < B * N * H * decays; i++)
        ck_assert((dl[i] == 0) == (i / decays % (N * H) < H));
    tape_free(tape);
}

/* The first position of a sequence without a state. */
TEST(the_log_decays_gradient_is_0_where_nothing_precedes)
{
    EACH_DECAYS
    check_gradient_without_a_past();
}

/* Which ends what was before, but not the search for NaN and infinity. */
static void check_search(void)
{
    Tape *tape = tape_new(test_device());
    Tensor *x[STATE];
    Real *values[INPUTS];
    all_values(values);
    values[LOG_DECAY][3] = -(Real)INFINITY;
    for (int i = 0; i < STATE; i++)
        x[i] = tape_variable(tape, values[i], shape_of(i));
    const DeltaRuleOptions options = { .log_decay = x[LOG_DECAY] };
    tape_check_finite(tape, true);
    Tensor *out = op_delta_rule(tape, x[QUERY], x[KEY], x[VALUE], x[BETA], options, NULL);
    tape_backward(tape, op_sum(tape, op_multiply(tape, out, out), ALL_AXES));
    tape_free(tape);
}

TEST(a_log_decay_of_minus_infinity_passes_the_search)
{
    EACH_DECAYS
    check_search();
}

/* A state after many positions of a weak decay, with a few updates, and its gradient. The factors'
 * rounding must not add up. */
static void check_weak_decays(bool per_key)
{
    enum { COUNT = 100000, SIZE = 8 };
    const int64_t l_size = per_key ? SIZE : 1;
    const double decay = exp((double)(Real)-1e-5);
    Tape *tape = tape_new(test_device());
    Real *key = test_zeros(COUNT * SIZE), *beta = test_zeros(COUNT);
    Real *l = test_zeros(COUNT * l_size);
    Real *value = test_normal(1, COUNT * SIZE), *state = test_normal(2, SIZE * SIZE);
    double S[SIZE * SIZE], R[SIZE * SIZE];
    set_all(l, COUNT * l_size, (Real)-1e-5);
    for (int64_t c = 0; c < SIZE * SIZE; c++)
        S[c] = R[c] = (double)state[c];
    for (int64_t i = 0; i < COUNT; i++) {
        key[i * SIZE + i / 1000 % SIZE] = 1; /* a row of the state */
        beta[i] = (Real)(i % 1000 == 7) / 2;
        for (int64_t c = 0; c < SIZE * SIZE; c++)
            S[c] *= decay;
        for (int64_t m = 0; m < SIZE && beta[i] != 0; m++)
            S[i / 1000 % SIZE * SIZE + m] =
                S[i / 1000 % SIZE * SIZE + m] / 2 + (double)value[i * SIZE + m] / 2;
    }
    for (int64_t i = COUNT - 1; i >= 0; i--)
        for (int64_t c = 0; c < SIZE * SIZE; c++)
            R[c] *= decay * (beta[i] != 0 && c / SIZE == i / 1000 % SIZE ? 0.5 : 1);
    const Shape rows = shape(1, COUNT, 1, SIZE), gates = shape(1, COUNT, 1);
    Tensor *k = tape_input(tape, key, rows), *v = tape_input(tape, value, rows), *after;
    Tensor *before = tape_variable(tape, state, shape(1, 1, SIZE, SIZE));
    Tensor *log_decay = tape_input(tape, l, per_key ? rows : gates);
    op_delta_rule(tape, k, k, v, tape_input(tape, beta, gates),
                  (DeltaRuleOptions){ .log_decay = log_decay, .state = before }, &after);
    tensor_keep(after);
    tape_backward_from(tape, after, tape_input(tape, state, after->shape));
    for (int backward = 0; backward < 2; backward++) {
        const Real *x = test_values(backward ? tensor_gradient(before) : after);
        double error = 0, max = 0;
        for (int64_t c = 0; c < SIZE * SIZE; c++) {
            const double expected = backward ? R[c] : S[c];
            error = fmax(error, fabs((double)x[c] - expected));
            max = fmax(max, fabs(expected));
        }
        ck_assert_msg(error <= 1e-6 * max, "%s is off by %g", backward ? "gradient" : "state",
                      error / max);
    }
    tape_free(tape);
}

TEST(weak_decays_do_not_drift)
{
    check_weak_decays(false);
    check_weak_decays(true);
}

/* --------------------------------------------------------------------------------------- misuse */

TEST(misuse_raises)
{
    Tape *tape = tape_new(test_device());
    const Shape row = shape(2, 5, 2, 3), gate = shape(2, 5, 2);
    Real values[60];
    set_all(values, 60, 0.5);
    Tensor *x = tape_input(tape, values, row), *beta = tape_input(tape, values, gate);
    Tensor *one = tape_input(tape, values, shape(1, 20, 1, 3));
    Tensor *one_beta = tape_input(tape, values, shape(1, 20, 1));
    Tensor *offsets = tape_input_i32(tape, (int32_t[]){ 0, 3, 19 }, shape(3));
    Tensor *lengths = tape_input_i32(tape, (int32_t[]){ 5, 6 }, shape(2));
    const DeltaRuleOptions none = { 0 };
    assert_raises("op_delta_rule: query is NULL",
                  op_delta_rule(tape, NULL, x, x, beta, none, NULL));
    assert_raises("op_delta_rule: beta is NULL", op_delta_rule(tape, x, x, x, NULL, none, NULL));
    assert_raises("op_delta_rule: beta is [2,5,2,3], expected [2,5,2]: one per position and head",
                  op_delta_rule(tape, x, x, x, x, none, NULL));
    assert_raises("op_delta_rule: state is [2,5,2,3], expected [2,2,3,3]: [sequences, H, D, M]",
                  op_delta_rule(tape, x, x, x, beta, (DeltaRuleOptions){ .state = x }, NULL));
    Tensor *flat = tape_input(tape, values, shape(2, 5, 6));
    Tensor *other = tape_input(tape, values, shape(2, 5, 3, 2));
    assert_raises(
        "op_delta_rule: log_decay is [2,5,6], expected [2,5,2]: one per position and head",
        op_delta_rule(tape, x, x, x, beta, (DeltaRuleOptions){ .log_decay = flat }, NULL));
    assert_raises(
        "op_delta_rule: log_decay is [2,5,3,2], expected [2,5,2,3]: one per position, head and "
        "key dimension",
        op_delta_rule(tape, x, x, x, beta, (DeltaRuleOptions){ .log_decay = other }, NULL));
    assert_raises(
        "op_delta_rule: key_lengths[1] is 6, expected 1 to 5, the number of keys",
        op_delta_rule(tape, x, x, x, beta, (DeltaRuleOptions){ .key_lengths = lengths }, NULL));
    assert_raises("op_delta_rule: offsets[2] is 19, expected ascending numbers from 0 to 20, the "
                  "number of positions",
                  op_delta_rule(tape, one, one, one, one_beta,
                                (DeltaRuleOptions){ .offsets = offsets }, NULL));
    if (!device_is_cuda(test_device())) {
        values[7] = (Real)2.5;
        Tensor *large = tape_input(tape, values, gate);
        assert_raises("op_delta_rule: beta[7] is 2.5, expected 0 to 2",
                      op_delta_rule(tape, x, x, x, large, none, NULL));
        assert_raises(
            "op_delta_rule: log_decay[0] is 0.5, expected 0 or less",
            op_delta_rule(tape, x, x, x, beta, (DeltaRuleOptions){ .log_decay = beta }, NULL));
        assert_raises(
            "op_delta_rule: log_decay[0] is 0.5, expected 0 or less",
            op_delta_rule(tape, x, x, x, beta, (DeltaRuleOptions){ .log_decay = x }, NULL));
    }
    tape_free(tape);
}

int main(void)
{
    return test_main("delta rule", NULL, NULL);
}
