/* The delta rule against what it says of beta and strong decays, the plain kernels, and itself with
 * the sequence split. */
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>

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

/* Random inputs: keys of length 1, betas in [0, 2], log decays in [-1, 0]. */
static Shape shape_of(int input)
{
    return input == STATE   ? shape(B, H, D, M)
           : input == VALUE ? shape(B, N, H, M)
           : input < VALUE  ? shape(B, N, H, D)
                            : shape(B, N, H);
}

static Real *values_of(int input)
{
    const int64_t count = shape_count(shape_of(input));
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
        values[i] = values_of(i);
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
    all_values(values);
    const Results whole = run_parts(test_device(), values, N);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        assert_same_results(whole, run_parts(test_device(), values, parts[i]));
    tape_free(whole.tape);
}

/* Betas at the ends of their range, and decays to nothing, in the midst of others. */
TEST(extreme_gates_match_plain)
{
    Real *values[INPUTS];
    all_values(values);
    for (int64_t i = 0; i < B * N * H; i++) {
        if (i % 5 < 3)
            values[BETA][i] = (Real)(i % 5);
        if (i % 11 == 0)
            values[LOG_DECAY][i] = -1000;
        if (i % 7 == 0)
            values[LOG_DECAY][i] = 0;
    }
    const Results plain = run_parts(device_open("plain"), values, N);
    assert_same_results(plain, run_parts(test_device(), values, N));
    tape_free(plain.tape);
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
TEST(a_decay_of_minus_1000_forgets_all)
{
    Tape *tape = tape_new(test_device());
    Tensor *after;
    Real *values[INPUTS], expected[B * N * H * M];
    all_values(values);
    set_all(values[LOG_DECAY], B * N * H, -1000);
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
    assert_raises("op_delta_rule: log_decay is [2,5,2,3], expected [2,5,2]: one per position and "
                  "head",
                  op_delta_rule(tape, x, x, x, beta, (DeltaRuleOptions){ .log_decay = x }, NULL));
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
    }
    tape_free(tape);
}

int main(void)
{
    return test_main("delta rule", NULL, NULL);
}
