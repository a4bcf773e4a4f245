/* Connectionist temporal classification: op_ctc. */
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static Tape *tape;

static void begin(void)
{
    tape = tape_new(test_device());
}

/* y [T, C] = softmax of logits */
static double *probabilities(const Real *logits, int64_t T, int64_t C)
{
    double *y = malloc((size_t)(T * C) * sizeof *y);
    for (int64_t t = 0; t < T; t++) {
        double sum = 0;
        for (int64_t c = 0; c < C; c++)
            sum += y[t * C + c] = exp((double)logits[t * C + c]);
        for (int64_t c = 0; c < C; c++)
            y[t * C + c] /= sum;
    }
    return y;
}

/* Whether a path emits the target: equal neighbors merged, then blanks dropped. */
static bool emits(const int *path, int64_t T, const int32_t *target, int64_t n)
{
    int64_t said = 0;
    for (int64_t t = 0; t < T; t++) {
        if (path[t] == 0 || (t > 0 && path[t] == path[t - 1]))
            continue;
        if (said == n || path[t] != target[said])
            return false;
        said++;
    }
    return said == n;
}

TEST(the_loss_is_the_sum_over_all_paths)
{
    begin();
    enum { T = 6, C = 3, PATHS = 729 };
    const int32_t targets[][3] = { { 1, 2, 1 }, { 1, 1, 2 }, { 2, 2, 0 }, { 1, 0, 0 }, { 0 } };
    const int32_t sizes[] = { 3, 3, 2, 1, 0 };
    for (int i = 0; i < 5; i++) {
        Tensor *logits = test_variable(tape, (uint64_t)i + 1, shape(1, T, C));
        double *y = probabilities(test_values(logits), T, C);
        double p = 0, occupancy[T * C] = { 0 };
        for (int path = 0; path < PATHS; path++) {
            int symbol[T], rest = path;
            double product = 1;
            for (int t = 0; t < T; t++, rest /= C) {
                symbol[t] = rest % C;
                product *= y[t * C + symbol[t]];
            }
            if (!emits(symbol, T, targets[i], sizes[i]))
                continue;
            p += product;
            for (int t = 0; t < T; t++)
                occupancy[t * C + symbol[t]] += product;
        }
        Tensor *loss =
            op_ctc(tape, logits, tape_input_i32(tape, targets[i], shape(1, 3)),
                   (CtcOptions){ .target_lengths = tape_input_i32(tape, sizes + i, shape(1)) });
        ck_assert_double_le(fabs(tensor_item(loss) + log(p)), 4 * VALUE_TOLERANCE);
        tape_backward(tape, loss);
        const Real *gradient = test_values(tensor_gradient(logits));
        for (int e = 0; e < T * C; e++)
            ck_assert_double_le(fabs((double)gradient[e] - (y[e] - occupancy[e] / p)),
                                VALUE_TOLERANCE);
        free(y);
        tape_reset(tape);
    }
    tape_free(tape);
}

/* ln (n choose k) */
static double log_choose(int64_t n, int64_t k)
{
    return lgamma((double)n + 1) - lgamma((double)k + 1) - lgamma((double)(n - k) + 1);
}

/* Equal logits make all paths equally probable, so that p and the occupancies count paths. Of t
 * frames, the last of which emits the j-th of symbols that differ from their neighbors, there are
 * t + j - 1 choose 2 j - 1. */
TEST(the_error_is_small_after_thousands_of_frames)
{
    enum { T = 3000, C = 7, N = 200 };
    begin();
    int32_t target[N];
    for (int j = 0; j < N; j++)
        target[j] = 1 + j * j / 3 % 2 + 2 * (j % 3);
    Tensor *logits = tape_variable(tape, test_zeros(T * C), shape(1, T, C));
    Tensor *loss = op_ctc(tape, logits, tape_input_i32(tape, target, shape(1, N)),
                          (CtcOptions){ .lengths = NULL });
    const double paths = log_choose(T + N, 2 * N);
    ck_assert_double_le(fabs(tensor_item(loss) / (T * log(C) - paths) - 1), 3 * VALUE_TOLERANCE);
    tape_backward(tape, loss);
    const Real *gradient = test_values(tensor_gradient(logits));
    double worst = 0;
    for (int64_t t = 1; t <= T; t++) {
        double occupancy[C] = { 1 };
        for (int64_t j = 1; j <= N && j <= t; j++) {
            if (T - t < N - j)
                continue;
            const double share = exp(log_choose(t + j - 1, 2 * j - 1) +
                                     log_choose(T - t + 1 + N - j, 2 * (N - j) + 1) - paths);
            occupancy[target[j - 1]] += share;
            occupancy[0] -= share;
        }
        for (int64_t c = 0; c < C; c++)
            worst = fmax(worst, fabs((double)gradient[(t - 1) * C + c] - 1. / C + occupancy[c]));
    }
    ck_assert_msg(worst <= 100 * VALUE_TOLERANCE, "the gradient differs by %g", worst);
    tape_free(tape);
}

/* ----------------------------------------------------------------------- lengths, infeasible
 * targets */
TEST(frames_and_symbols_beyond_the_lengths_leave_no_trace)
{
    enum { B = 3, T = 9, C = 5, S = 4 };
    begin();
    const int32_t lengths[B] = { 9, 5, 7 }, sizes[B] = { 4, 2, 0 };
    const int32_t targets[B][S] = { { 1, 1, 4, 2 }, { 3, 2, 0, 4 }, { 0, 4, 4, 4 } };
    Real *values = test_normal(3, B * T * C), *clean = test_normal(3, B * T * C);
    for (int b = 0; b < B; b++)
        for (int i = lengths[b] * C; i < T * C; i++)
            values[b * T * C + i] = (Real)NAN;
    Tensor *logits = tape_variable(tape, values, shape(B, T, C));
    Tensor *losses =
        op_ctc(tape, logits, tape_input_i32(tape, targets[0], shape(B, S)),
               (CtcOptions){ .lengths = tape_input_i32(tape, lengths, shape(B)),
                             .target_lengths = tape_input_i32(tape, sizes, shape(B)) });
    tape_backward(tape, op_sum(tape, tensor_keep(losses), ALL_AXES));
    const Real *loss = test_values(losses), *gradient = test_values(tensor_gradient(logits));
    for (int b = 0; b < B; b++) {
        const int end = lengths[b] * C;
        tape_reset(tape);
        Tensor *alone = tape_variable(tape, clean + b * T * C, shape(1, lengths[b], C));
        Tensor *expected =
            op_ctc(tape, alone, tape_input_i32(tape, targets[b], shape(1, S)),
                   (CtcOptions){ .target_lengths = tape_input_i32(tape, sizes + b, shape(1)) });
        tape_backward(tape, expected);
        ck_assert_double_le(fabs((double)loss[b] - tensor_item(expected)), 5 * VALUE_TOLERANCE);
        assert_near("gradient", gradient + b * T * C, test_values(tensor_gradient(alone)), end,
                    VALUE_TOLERANCE);
        for (int i = end; i < T * C; i++)
            ck_assert(gradient[b * T * C + i] == 0);
    }
    tape_free(tape);
}

/* "1 1" needs three frames; sequence 1 has two, sequence 2 none. */
TEST(an_infeasible_target_has_an_infinite_loss_or_is_ignored)
{
    enum { B = 3, T = 3, C = 3 };
    begin();
    const int32_t lengths[B] = { 3, 2, 0 }, targets[B][2] = { { 1, 1 }, { 1, 1 }, { 2, 1 } };
    for (int ignore = 0; ignore < 2; ignore++) {
        Tensor *logits = test_variable(tape, 1, shape(B, T, C));
        Tensor *losses = op_ctc(tape, logits, tape_input_i32(tape, targets[0], shape(B, 2)),
                                (CtcOptions){ .lengths = tape_input_i32(tape, lengths, shape(B)),
                                              .ignore_infeasible = ignore });
        tape_backward(tape, op_sum(tape, tensor_keep(losses), ALL_AXES));
        const Real *loss = test_values(losses), *gradient = test_values(tensor_gradient(logits));
        ck_assert(loss[0] > 0 && isfinite(loss[0]));
        for (int b = 1; b < B; b++)
            ck_assert(ignore ? loss[b] == 0 : loss[b] == (Real)INFINITY);
        for (int i = 0; i < T * C; i++) {
            ck_assert(isfinite(gradient[i]) && gradient[i] != 0);
            const bool within = i < lengths[1] * C;
            ck_assert(ignore || !within ? gradient[T * C + i] == 0 : isnan(gradient[T * C + i]));
            ck_assert(gradient[2 * T * C + i] == 0);
        }
        tape_reset(tape);
    }
    tape_free(tape);
}

/* A symbol of probability 0, and logits far from 0 */
TEST(infinite_and_large_logits)
{
    begin();
    const Real infinite = -(Real)INFINITY;
    const Real values[] = { 1e4f, 1e4f, infinite, -1e4f, 1 - 1e4f, infinite };
    const int32_t targets[] = { 1, 2 };
    Tensor *logits = tape_variable(tape, values, shape(1, 2, 3));
    Tensor *one = op_ctc(tape, logits, tape_input_i32(tape, targets, shape(1, 1)),
                         (CtcOptions){ .lengths = NULL });
    const double e = exp(1.0), p = 1 - 0.5 / (1 + e); /* all but blank, blank */
    ck_assert_double_le(fabs(tensor_item(one) + log(p)), VALUE_TOLERANCE);
    ck_assert(isinf(tensor_item(op_ctc(tape, logits, tape_input_i32(tape, targets + 1, shape(1, 1)),
                                       (CtcOptions){ .lengths = NULL }))));
    tape_backward(tape, one);
    const Real *gradient = test_values(tensor_gradient(logits));
    ck_assert_double_le(fabs((double)gradient[1] - (0.5 - 0.5 / p)), VALUE_TOLERANCE);
    ck_assert(gradient[2] == 0 && gradient[5] == 0);
    tape_free(tape);
}

/* Three of the six paths begin with the blank, three with the symbol. */
TEST(equal_sums_of_blanks_and_symbols_are_not_infeasible)
{
    const int32_t target = 1;
    const Real zeros[9] = { 0 };
    begin();
    Tensor *logits = tape_variable(tape, zeros, shape(1, 3, 3));
    Tensor *loss = op_ctc(tape, logits, tape_input_i32(tape, &target, shape(1, 1)),
                          (CtcOptions){ .ignore_infeasible = true });
    tape_backward(tape, tensor_keep(loss));
    ck_assert_double_eq_tol(tensor_item(loss), -log(6. / 27), VALUE_TOLERANCE);
    const Real *gradient = test_values(tensor_gradient(logits));
    ck_assert_double_eq_tol((double)gradient[0], 1. / 3 - 0.5, VALUE_TOLERANCE);
    ck_assert_double_eq_tol((double)gradient[2], 1. / 3, VALUE_TOLERANCE);
    tape_free(tape);
}

/* The only path says one symbol directly after the other; its probability underflows. */
TEST(a_path_without_blanks_may_be_improbable)
{
    begin();
    const Real values[] = { 1000, 0, 0, 0, 0, 0 };
    const int32_t targets[] = { 1, 2 };
    Tensor *loss =
        op_ctc(tape, tape_input(tape, values, shape(1, 2, 3)),
               tape_input_i32(tape, targets, shape(1, 2)), (CtcOptions){ .lengths = NULL });
    ck_assert_double_le(fabs(tensor_item(loss) / (1000 + log(3.0)) - 1), VALUE_TOLERANCE);
    tape_free(tape);
}

TEST(misuse_raises)
{
    begin();
    const CtcOptions none = { .lengths = NULL };
    const int32_t valid[] = { 1, 2, 2, 4 }, blank[] = { 1, 2, 2, 0 }, high[] = { 1, 5, 1, 1 };
    Tensor *x = test_variable(tape, 1, shape(2, 3, 5)),
           *t = tape_input_i32(tape, valid, shape(2, 2));
    assert_raises("op_ctc: logits is NULL", op_ctc(tape, NULL, t, none));
    assert_raises("op_ctc: targets is NULL", op_ctc(tape, x, NULL, none));
    assert_raises("op_ctc: targets has dtype Real, expected int32", op_ctc(tape, x, x, none));
    assert_raises("op_ctc: logits is [6,5], expected [B, T, C]",
                  op_ctc(tape, op_reshape(tape, x, shape(6, 5)), t, none));
    assert_raises("op_ctc: targets is [4], expected [2, S]: logits is [2,3,5]",
                  op_ctc(tape, x, tape_input_i32(tape, valid, shape(4)), none));
    assert_raises("op_ctc: targets[1] is 5, expected 0 to 4, the symbols of logits",
                  op_ctc(tape, x, tape_input_i32(tape, high, shape(2, 2)), none));
    assert_raises("op_ctc: targets[1,1] is 0, the blank, expected 1 to 4",
                  op_ctc(tape, x, tape_input_i32(tape, blank, shape(2, 2)), none));
    assert_raises("op_ctc: lengths is [2,2], expected [2]: one per sequence",
                  op_ctc(tape, x, t, (CtcOptions){ .lengths = t }));
    assert_raises(
        "op_ctc: lengths[1] is 4, expected 0 to 3, the frames of logits",
        op_ctc(tape, x, t, (CtcOptions){ .lengths = tape_input_i32(tape, valid + 2, shape(2)) }));
    assert_raises(
        "op_ctc: target_lengths[1] is 4, expected 0 to 2, the symbols of targets",
        op_ctc(tape, x, t,
               (CtcOptions){ .target_lengths = tape_input_i32(tape, valid + 2, shape(2)) }));
    tape_free(tape);
}

int main(void)
{
    return test_main("ctc", NULL, NULL);
}
