/* Operations along rows: layernorm, softmax, losses, embedding, dropout. */
#include "tests/support.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static Tape *tape;

static void begin(void)
{
    tape = tape_new(test_device());
}

enum { UPSTREAM = 99 };

/* A backward pass from random values, test_normal(UPSTREAM). */
static void backward(Tensor *out)
{
    Real *upstream = test_normal(UPSTREAM, tensor_count(out));
    tape_backward_from(tape, tensor_keep(out), tape_input(tape, upstream, out->shape));
}

static Real *gradient(Tensor *x)
{
    return test_values(tensor_gradient(x));
}

/* Integers in [0, limit), the same for the same stream. */
enum { MAX_INTEGERS = 1 << 16 };
static const int32_t *integers(uint64_t stream, int64_t count, int32_t limit)
{
    static int32_t values[MAX_INTEGERS];
    ck_assert_int_le(count, MAX_INTEGERS);
    Random random = random_new(7, stream);
    for (int64_t i = 0; i < count; i++)
        values[i] = (int32_t)random_integer(&random, 0, limit);
    return values;
}

/* ----------------------------------------------------------------------------------- the values */
TEST(large_and_infinite_logits)
{
    begin();
    const Real large[] = { 10000, 9999, -10000, -10000, -10000, -10000 };
    const int32_t targets[] = { 1, 2 };
    Tensor *x = tape_variable(tape, large, shape(2, 3));
    Real *p = test_values(op_softmax(tape, x)), *l = test_values(op_log_softmax(tape, x));
    const double share = 1 / (1 + exp(-1.0)), third = 1 / 3.0;
    const double expected[] = { share, 1 - share, 0, third, third, third };
    for (int i = 0; i < 6; i++)
        ck_assert_double_le(fabs((double)p[i] - expected[i]), VALUE_TOLERANCE);
    ck_assert_double_le(fabs((double)l[0] - log(share)), VALUE_TOLERANCE);
    ck_assert_double_le(fabs((double)l[2] + 20000), 1);
    ck_assert_double_le(fabs((double)l[5] - log(third)), VALUE_TOLERANCE);
    Tensor *loss = op_cross_entropy(tape, x, tape_input_i32(tape, targets, shape(2)), NULL);
    tape_backward(tape, loss);
    ck_assert_double_le(fabs(tensor_item(loss) - (log(3) - log(1 - share)) / 2), VALUE_TOLERANCE);
    Real *dx = gradient(x);
    const double gradients[] = { share / 2, -share / 2, 0, third / 2, third / 2, -third };
    for (int i = 0; i < 6; i++)
        ck_assert_double_le(fabs((double)dx[i] - gradients[i]), VALUE_TOLERANCE);
    tape_reset(tape);
    const Real masked[] = { 1, -(Real)INFINITY, 1 };
    p = test_values(op_softmax(tape, tape_input(tape, masked, shape(3))));
    ck_assert(p[0] == 0.5 && p[1] == 0 && p[2] == 0.5);
    tape_free(tape);
}

/* The digits that the offset leaves to the logits are all that it costs. */
TEST(logits_with_a_common_offset)
{
    enum { ROWS = 16, C = 33 };
    const double offsets[] = { 0, 30, 1e3, 1e4, 1e6 };
    const int32_t *targets = integers(1, ROWS, C);
    for (int o = 0; o < 5; o++) {
        Real *xs = test_normal(1, ROWS * C), *upstream = test_normal(2, ROWS * C);
        Real *values = test_zeros(ROWS * C), *dx = test_zeros(ROWS * C);
        Real *dlogits = test_zeros(ROWS * C);
        double loss = 0;
        for (int i = 0; i < ROWS * C; i++)
            xs[i] += (Real)offsets[o];
        for (int r = 0; r < ROWS * C; r += C) {
            double sum = 0, dsum = 0;
            for (int c = 0; c < C; c++) {
                sum += exp((double)xs[r + c] - offsets[o]);
                dsum += (double)upstream[r + c];
            }
            for (int c = 0; c < C; c++) {
                const double l = (double)xs[r + c] - offsets[o] - log(sum);
                const bool target = c == targets[r / C];
                values[r + c] = (Real)l;
                dx[r + c] = (Real)((double)upstream[r + c] - exp(l) * dsum);
                dlogits[r + c] = (Real)((exp(l) - target) / ROWS);
                loss -= target ? l / ROWS : 0;
            }
        }
        begin();
        Tensor *x = tape_variable(tape, xs, shape(ROWS, C)), *out = op_log_softmax(tape, x);
        tape_backward_from(tape, tensor_keep(out), tape_input(tape, upstream, shape(ROWS, C)));
        assert_close(test_values(out), values, ROWS * C, VALUE_TOLERANCE / 10);
        assert_close(gradient(x), dx, ROWS * C, VALUE_TOLERANCE / 5);
        tape_reset(tape);
        x = tape_variable(tape, xs, shape(ROWS, C));
        Tensor *mean = op_cross_entropy(tape, x, tape_input_i32(tape, targets, shape(ROWS)), NULL);
        tape_backward(tape, mean);
        ck_assert_double_le(fabs(tensor_item(mean) - loss), VALUE_TOLERANCE / 5);
        assert_close(gradient(x), dlogits, ROWS * C, VALUE_TOLERANCE / 10);
        tape_free(tape);
    }
}

/* The error of a sum does not grow with the length of a row. */
TEST(long_rows_are_accurate)
{
    const int64_t C = device_is_cuda(test_device()) ? 1 << 16 : 1 << 22;
    begin();
    Real *xs = test_zeros(C), *ones = test_zeros(C);
    double sum = 0, squares = 0, powers = 0;
    for (int64_t c = 0; c < C; c++) {
        xs[c] = (Real)(c * 7919 % 10007) / 10007;
        ones[c] = 1;
        sum += (double)xs[c];
        powers += exp((double)xs[c]);
    }
    for (int64_t c = 0; c < C; c++)
        squares += pow((double)xs[c] - sum / (double)C, 2);
    Tensor *x = tape_input(tape, xs, shape(C)), *zeros = tape_input(tape, test_zeros(C), shape(C));
    const Real *p = test_values(op_softmax(tape, x)), *l = test_values(op_log_softmax(tape, x));
    const Real *n =
        test_values(op_layernorm(tape, x, tape_input(tape, ones, shape(C)), zeros, 1e-5));
    for (int64_t c = 0; c < C; c += C / 16 - 1) {
        const double power = exp((double)xs[c]);
        const double norm = ((double)xs[c] - sum / (double)C) / sqrt(squares / (double)C + 1e-5);
        ck_assert_double_le(fabs((double)p[c] / (power / powers) - 1), 1e-6);
        ck_assert_double_le(fabs((double)l[c] - log(power / powers)), 2e-6);
        ck_assert_double_le(fabs((double)n[c] - norm), 1e-6);
    }
    tape_free(tape);
}

/* Sums over 2^17 rows of 1 + 2^-15: exact over runs of 256 rows in float; a float sum of 1024 rows
 * loses 2^-15. */
TEST(sums_over_many_rows_are_exact)
{
    enum { R = 1 << 17 };
    begin();
    Real *values = test_zeros(R), *ones = test_zeros(R), term = 1 + (Real)0x1p-15, one = 1;
    for (int r = 0; r < R; r++) {
        values[r] = term;
        ones[r] = 1;
    }
    const Real sum = (Real)(R * (double)term), zeros[] = { 0 };
    for (int operation = 0; operation < 4; operation++) {
        Tensor *x = tape_input(tape, ones, shape(R, 1));
        Tensor *weight = tape_input(tape, zeros, shape(1));
        Tensor *bias = tape_variable(tape, &one, shape(1));
        Tensor *matrix = tape_input(tape, zeros, shape(1, 1)), *out = NULL;
        if (operation == 0)
            out = op_linear(tape, x, matrix, bias);
        else if (operation == 1)
            out = op_linear_activation(tape, x, matrix, bias, ACTIVATION_RELU);
        else if (operation == 2)
            out = op_layernorm(tape, x, weight, bias, 1e-5);
        else
            out = op_residual_layernorm(tape, x, x, 0, weight, bias, 1e-5);
        tape_backward_from(tape, out, tape_input(tape, values, out->shape));
        assert_values(tensor_gradient(bias), shape(1), VALUES(sum));
        tape_reset(tape);
    }
    tape_free(tape);
}

/* Every element subtracts the same row maximum, wherever that is: e^1000 would be infinite. */
TEST(large_logit_in_a_long_row)
{
    enum { C = 1500 };
    for (int place = 3; place < C; place += 499) {
        begin();
        Real logits[C] = { 0 };
        logits[place] = 1000;
        Tensor *x = tape_input(tape, logits, shape(C));
        Real *p = test_values(op_softmax(tape, x)), *l = test_values(op_log_softmax(tape, x));
        for (int i = 0; i < C; i++) {
            ck_assert_double_eq((double)p[i], i == place);
            ck_assert_double_eq((double)l[i], i == place ? 0 : -1000);
        }
        tape_free(tape);
    }
}

TEST(nan_propagates)
{
    enum { ROWS = 3, C = 37 };
    begin();
    Real *xs = test_normal(1, ROWS * C);
    xs[C + 35] = (Real)NAN;
    Tensor *x = tape_variable(tape, xs, shape(ROWS, C));
    Real *of_softmax = test_values(op_softmax(tape, x));
    Real *of_log_softmax = test_values(op_log_softmax(tape, x));
    Tensor *w = test_variable(tape, 2, shape(C));
    Real *of_layernorm = test_values(op_layernorm(tape, x, w, w, 1));
    for (int i = 0; i < ROWS * C; i++) {
        ck_assert_int_eq(isnan(of_softmax[i]) != 0, i / C == 1);
        ck_assert_int_eq(isnan(of_log_softmax[i]) != 0, i / C == 1);
        ck_assert_int_eq(isnan(of_layernorm[i]) != 0, i / C == 1);
    }
    Tensor *targets = tape_input_i32(tape, integers(1, ROWS, C), shape(ROWS));
    Tensor *loss = op_cross_entropy(tape, x, targets, NULL);
    tape_backward(tape, loss);
    ck_assert(isnan(tensor_item(loss)));
    for (int i = 0; i < ROWS * C; i++)
        ck_assert_int_eq(isnan(gradient(x)[i]) != 0, i / C == 1);
    tape_reset(tape);
    x = tape_variable(tape, xs, shape(ROWS, C));
    ck_assert(
        isnan(tensor_item(op_mean_squared_error(tape, x, test_variable(tape, 2, shape(ROWS, C))))));
    tape_free(tape);
}

/* A run that diverges does not look calm. */
TEST(a_row_whose_variance_overflows_is_normalized_to_nan)
{
    enum { ROWS = 3, C = 37 };
    for (int residual = 0; residual < 2; residual++) {
        begin();
        Real *xs = test_normal(1, ROWS * C);
        for (int c = 0; c < C; c++)
            xs[C + c] *= (Real)(sizeof(Real) == 4 ? 1e20 : 1e200);
        Tensor *x = tape_variable(tape, xs, shape(ROWS, C)), *zeros = NULL;
        Tensor *weight = test_variable(tape, 2, shape(C)), *bias = test_variable(tape, 3, shape(C));
        if (residual)
            zeros = tape_variable(tape, test_zeros(ROWS * C), shape(ROWS, C));
        Tensor *out = residual ? op_residual_layernorm(tape, x, zeros, 0, weight, bias, 1)
                               : op_layernorm(tape, x, weight, bias, 1);
        Real *outs = test_values(out);
        backward(out);
        for (int i = 0; i < ROWS * C; i++) {
            ck_assert_int_eq(isnan(outs[i]) != 0, i / C == 1);
            ck_assert_int_eq(isnan(gradient(x)[i]) != 0, i / C == 1);
        }
        for (int c = 0; c < C; c++)
            ck_assert(isnan(gradient(weight)[c]));
        tape_free(tape);
    }
}

/* A row's gradient where r is 1 / sqrt(eps): dx = times r (w g - mean(w g)), where the row is
 * `times` x. */
static void check_constant_gradient(const Real *dx, const Real *weight, const Real *upstream,
                                    int64_t C, double times, double tolerance)
{
    const double r = 1 / sqrt(1e-5);
    double mean = 0, largest = 0;
    for (int64_t c = 0; c < C; c++)
        mean += (double)weight[c] * (double)upstream[c] / (double)C;
    Worst worst = { 0 };
    for (int64_t c = 0; c < C; c++) {
        const double expected = times * r * ((double)weight[c] * (double)upstream[c] - mean);
        largest = fmax(largest, fabs(expected));
        test_worst(&worst, fabs((double)dx[c] - expected), c);
    }
    ck_assert_msg(worst.error <= tolerance * largest, "%lld columns: dx errs by %g of %g",
                  (long long)C, worst.error, largest);
}

/* The mean of a constant row is the row's value without a rounding error, which r = 1 / sqrt(eps)
 * would magnify, and its variance is 0. In double a sum of C values has no more digits than the
 * row: it errs by at most C / 2 units in the last place. */
static void check_constant_rows(int64_t C, bool residual, Precision precision)
{
    enum { ROWS = 3 };
    const Real row[ROWS] = { (Real)170.3, (Real)-12345.67, (Real)1e-3 };
    Real *xs = test_zeros(ROWS * C), *biases = test_zeros(C);
    for (int64_t i = 0; i < ROWS * C; i++)
        xs[i] = row[i / C];
    for (int64_t c = 0; c < C; c++)
        biases[c] = (Real)(c % 7); /* bf16 holds it */
    begin();
    tape_set_precision(tape, precision);
    Tensor *variables = tape_variable(tape, xs, shape(ROWS, C));
    Tensor *x = precision == PRECISION_BF16 ? op_cast(tape, variables, TENSOR_BF16) : variables;
    Tensor *weight = test_variable(tape, 2, shape(C)), *bias = tape_input(tape, biases, shape(C));
    Tensor *out =
        residual ? op_residual_layernorm(tape, x, op_scale(tape, x, 0.7), 0, weight, bias, 1e-5)
                 : op_layernorm(tape, x, weight, bias, 1e-5);
    out = op_cast(tape, out, TENSOR_REAL);
    backward(out);
    const Real *values = test_values(out), *dweight = gradient(weight), *dx = gradient(variables);
    Worst worst = { 0 };
    for (int64_t i = 0; i < ROWS * C; i++) {
        test_worst(&worst, fabs((double)values[i] - (double)biases[i % C]), i);
        test_worst(&worst, fabs((double)dweight[i % C]), i);
    }
    const Real *upstream = test_normal(UPSTREAM, ROWS * C), *weights = test_values(weight);
    for (int r = 0; r < ROWS && C > 1; r++)
        check_constant_gradient(dx + r * C, weights, upstream + r * C, C, residual ? 1.7 : 1,
                                precision == PRECISION_BF16 ? 0.02 : 1e-5);
    const double largest = 2 * 12345.67 / sqrt(1e-5);
    const double bound = sizeof(Real) == 4 ? 0 : (double)C * DBL_EPSILON * largest;
    ck_assert_msg(worst.error <= bound, "%lld columns, %s%s: error %g", (long long)C,
                  residual ? "residual, " : "", precision == PRECISION_BF16 ? "bf16" : "Real",
                  worst.error);
    tape_free(tape);
}

TEST(a_constant_row_is_normalized_to_the_bias)
{
    const int64_t columns[] = { 1, 5, 33, 768, 4097, 10007 };
    for (int i = 0; i < 6; i++)
        for (int residual = 0; residual < 2; residual++) {
            check_constant_rows(columns[i], residual, PRECISION_FLOAT32);
            if (test_has_bf16())
                check_constant_rows(columns[i], residual, PRECISION_BF16);
        }
}

/* layernorm of a row, and that of a residual whose branch is 0 */
static void normalize(const Real *results[2], const Real *xs, int64_t C)
{
    begin();
    Tensor *x = tape_input(tape, xs, shape(C)), *zeros = tape_input(tape, test_zeros(C), shape(C));
    results[0] = test_values(op_layernorm(tape, x, NULL, NULL, 1e-5));
    results[1] = test_values(op_residual_layernorm(tape, x, zeros, 0, NULL, NULL, 1e-5));
    tape_free(tape);
}

/* Against sums in double. */
static void check_normalized(const Real *xs, int64_t C, double tolerance)
{
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < C; c++)
        mean += (double)xs[c] / (double)C;
    for (int64_t c = 0; c < C; c++)
        variance += pow((double)xs[c] - mean, 2) / (double)C;
    const Real *results[2];
    normalize(results, xs, C);
    for (int64_t c = 0; c < C; c++) {
        const double expected = ((double)xs[c] - mean) / sqrt(variance + 1e-5);
        for (int i = 0; i < 2; i++)
            ck_assert_double_eq_tol((double)results[i][c], expected, tolerance);
    }
}

static void check_offset(double offset, double deviation, double tolerance)
{
    enum { C = 256 };
    Real *xs = test_normal(1, C);
    for (int c = 0; c < C; c++)
        xs[c] = (Real)(offset + deviation * (double)xs[c]);
    check_normalized(xs, C, tolerance);
}

/* Two passes, for mean and variance: a large offset costs only the digits that the values
 * themselves lose. */
TEST(layernorm_with_a_large_offset)
{
    check_offset(1000, 1, 1e-3);
    if (sizeof(Real) == sizeof(double))
        check_offset(1e6, 0.1, 1e-6);
}

/* The first element, from which a mean may be computed, is far from the others, or the last is. */
TEST(layernorm_of_a_row_with_an_outlier)
{
    enum { C = 256 };
    for (int c = 0; c < C; c += C - 1) {
        Real *xs = test_normal(1, C);
        xs[c] = 10000;
        check_normalized(xs, C, 3e-6);
    }
}

/* Half of a row is a number, half the next float32: no float32 is their mean, but r is exact. */
TEST(layernorm_of_neighboring_numbers)
{
    enum { C = 200 };
    const double step = 0.0625, r = 1 / sqrt(step * step / 4 + 1e-5);
    Real xs[C];
    for (int c = 0; c < C; c++)
        xs[c] = (Real)(1e6 + step * (c % 2));
    const Real *results[2];
    normalize(results, xs, C);
    for (int i = 0; i < 2; i++)
        for (int c = 1; c < C; c++)
            ck_assert_double_eq_tol(fabs((double)(results[i][c] - results[i][c - 1])), step * r,
                                    1e-5);
}

/* Rows of weight 0 have no effect, and weights of 1 equal no weights. */
TEST(weights_of_cross_entropy)
{
    enum { ROWS = 300, C = 11 };
    begin();
    Real *ones = test_normal(0, ROWS), *logits = test_normal(1, ROWS * C);
    for (int r = 0; r < ROWS; r++)
        ones[r] = 1;
    Tensor *x = tape_variable(tape, logits, shape(ROWS, C));
    Tensor *targets = tape_input_i32(tape, integers(1, ROWS, C), shape(ROWS));
    double with =
        tensor_item(op_cross_entropy(tape, x, targets, tape_input(tape, ones, shape(ROWS))));
    double without = tensor_item(op_cross_entropy(tape, x, targets, NULL));
    ck_assert(with == without);
    for (int r = 100; r < ROWS; r++)
        ones[r] = 0;
    logits[150 * C + 3] = (Real)NAN;
    logits[ROWS * C - 1] = -(Real)INFINITY;
    x = tape_variable(tape, logits, shape(ROWS, C));
    Tensor *masked = op_cross_entropy(tape, x, targets, tape_input(tape, ones, shape(ROWS)));
    tape_backward(tape, masked);
    Real *dx = gradient(x);
    for (int i = 100 * C; i < ROWS * C; i++)
        ck_assert(dx[i] == 0);
    Tensor *first = tape_input(tape, logits, shape(100, C));
    Tensor *first_targets = tape_input_i32(tape, integers(1, 100, C), shape(100));
    double expected = tensor_item(op_cross_entropy(tape, first, first_targets, NULL));
    ck_assert_double_le(fabs(tensor_item(masked) - expected), VALUE_TOLERANCE);
    tape_free(tape);
}

/* Operation number `index` of two operands, of which those whose bit is set are cast to bf16, and
 * the others Real: its result as Real */
static const Real *result_of_dtypes(int index, int bf16)
{
    Tensor *x[2];
    for (int i = 0; i < 2; i++) {
        x[i] = test_variable(tape, (uint64_t)i + 1, shape(3, 5));
        if (bf16 >> i & 1)
            x[i] = op_cast(tape, x[i], TENSOR_BF16);
    }
    Tensor *out = index == 0   ? op_add(tape, x[0], x[1])
                  : index == 1 ? op_where(tape, test_variable(tape, 4, shape(5)), x[0], x[1])
                  : index == 2
                      ? op_mean_squared_error(tape, x[0], x[1])
                      : op_residual_layernorm(tape, x[0], x[1], 0, test_variable(tape, 5, shape(5)),
                                              test_variable(tape, 6, shape(5)), 1e-5);
    const Real *result = test_values(op_cast(tape, out, TENSOR_REAL));
    tape_reset(tape);
    return result;
}

/* out[o, i] of x [outer, size, inner]: the sum, the mean and the variance over j, in double */
static void assert_reductions(Tensor *x, int axis, int64_t outer, int64_t size, int64_t inner)
{
    const Real *xs = test_values(x), *sums = test_values(op_sum(tape, x, axis));
    const Real *means = test_values(op_mean(tape, x, axis));
    const Real *variances = test_values(op_variance(tape, x, axis));
    for (int64_t out = 0; out < outer * inner; out++) {
        const Real *first = xs + out / inner * size * inner + out % inner;
        double sum = 0, squares = 0;
        for (int64_t j = 0; j < size; j++)
            sum += (double)first[j * inner];
        for (int64_t j = 0; j < size; j++)
            squares += pow((double)first[j * inner] - sum / (double)size, 2);
        const double expected[] = { sum, sum / (double)size, squares / (double)size };
        const Real found[] = { sums[out], means[out], variances[out] };
        for (int k = 0; k < 3; k++)
            ck_assert_double_le(fabs((double)found[k] - expected[k]),
                                10 * VALUE_TOLERANCE * fmax(fabs(expected[k]), 1));
    }
}

/* Of bf16 values around 100, the mean is no bf16 number. */
TEST(sums_means_and_variances_equal_plain_loops)
{
    enum { OUTER = 3, SIZE = 4, INNER = 5, COUNT = OUTER * SIZE * INNER };
    for (int bf16 = 0; bf16 < (test_has_bf16() ? 2 : 1); bf16++) {
        begin();
        tape_set_precision(tape, bf16 ? PRECISION_BF16 : PRECISION_FLOAT32);
        Real *values = test_normal(1, COUNT);
        for (int i = 0; i < COUNT; i++)
            values[i] += 100;
        Tensor *x = tape_variable(tape, values, shape(OUTER, SIZE, INNER));
        if (bf16)
            x = op_cast(tape, x, TENSOR_BF16);
        assert_reductions(x, 0, 1, OUTER, SIZE * INNER);
        assert_reductions(x, 1, OUTER, SIZE, INNER);
        assert_reductions(x, -1, OUTER * SIZE, INNER, 1);
        assert_reductions(x, ALL_AXES, 1, COUNT, 1);
        tape_free(tape);
    }
}

TEST(operands_of_two_dtypes_become_bf16)
{
    if (!test_has_bf16())
        return;
    begin();
    tape_set_precision(tape, PRECISION_BF16);
    for (int operation = 0; operation < 4; operation++) {
        const Real *expected = result_of_dtypes(operation, 3);
        for (int bf16 = 1; bf16 < 3; bf16++)
            assert_identical(result_of_dtypes(operation, bf16), expected, operation == 2 ? 1 : 15);
    }
    tape_free(tape);
}

/* -------------------------------------------------------------------------------------- dropout */
/* Element i is dropped where the i-th number of random_uniform is below p, and divided by 1 - p
 * elsewhere; n elements take ceil(n / 4) Philox counters. test_random has the distribution. */
TEST(dropout_draws_from_the_tapes_generator)
{
    static const int64_t counts[] = { 1, 3, 4, 5, 127, 128, 129, 1000, 70003 };
    /* 1 - p of a float p = 0.999 would be off by 1e-5 of itself */
    static const double probabilities[] = { 0.001, 0.25, 0.9, 0.999 };
    begin();
    tape_seed(tape, 5);
    for (int k = 0; k < 9 * 4; k++) {
        const int64_t n = counts[k / 4];
        const double p = probabilities[k % 4];
        const Real *xs = test_normal(1, n);
        Random random = tape_random(tape);
        Real *uniform = test_zeros(n);
        const Real *out = test_values(op_dropout(tape, tape_input(tape, xs, shape(n)), p));
        random_uniform(&random, uniform, n);
        ck_assert_uint_eq(tape_random(tape).counter, random.counter);
        for (int64_t i = 0; i < n; i++)
            ck_assert(out[i] == ((double)uniform[i] >= p ? xs[i] * (Real)(1 / (1 - p)) : 0));
    }
    tape_free(tape);
}

TEST(dropout_of_probability_0_or_in_evaluation_returns_x)
{
    begin();
    Tensor *x = test_variable(tape, 1, shape(5));
    Random before = tape_random(tape);
    ck_assert_ptr_eq(op_dropout(tape, x, 0), x);
    ck_assert(tape_set_training(tape, false));
    ck_assert_ptr_eq(op_dropout(tape, x, 0.5), x);
    Random after = tape_random(tape);
    ck_assert_uint_eq(after.counter, before.counter);
    ck_assert(!tape_set_training(tape, true));
    ck_assert(tape_is_training(tape));
    ck_assert_ptr_ne(op_dropout(tape, x, 0.5), x);
    tape_free(tape);
}

/* Monte Carlo dropout: the passes draw the masks that recorded ones would. */
TEST(dropout_draws_with_recording_off)
{
    enum { N = 1000 };
    begin();
    Tensor *x = test_variable(tape, 1, shape(N)), *w = test_variable(tape, 2, shape(N));
    Real *recorded = test_values(op_dropout(tape, x, 0.5));
    Real *norm = test_values(op_residual_layernorm(tape, x, x, 0.5, w, w, 1));
    tape_seed(tape, 0);
    tape_set_recording(tape, false);
    Tensor *first = op_dropout(tape, x, 0.5);
    ck_assert(!first->requires_grad);
    ck_assert_mem_eq(test_values(first), recorded, N * sizeof(Real));
    ck_assert_mem_eq(test_values(op_residual_layernorm(tape, x, x, 0.5, w, w, 1)), norm,
                     N * sizeof(Real));
    Real *second = test_values(op_dropout(tape, x, 0.5));
    ck_assert_mem_ne(second, recorded, N * sizeof(Real));
    tape_free(tape);
}

TEST(gradients_with_training_off_have_no_dropout)
{
    enum { N = 100 };
    Real *gradients[2];
    begin();
    const uint64_t before = tape_random(tape).counter;
    tape_set_training(tape, false);
    for (int dropout = 0; dropout < 2; dropout++) {
        const Real p = dropout ? 0.5 : 0;
        Tensor *x = test_variable(tape, 1, shape(N)), *w = test_variable(tape, 2, shape(N));
        Tensor *dropped = op_multiply(tape, op_dropout(tape, x, p), x);
        tape_backward(tape,
                      op_sum(tape, op_residual_layernorm(tape, dropped, x, p, w, w, 1), ALL_AXES));
        gradients[dropout] = test_values(tensor_gradient(x));
        tape_reset(tape);
    }
    ck_assert_mem_eq(gradients[1], gradients[0], N * sizeof(Real));
    ck_assert_uint_eq(tape_random(tape).counter, before);
    tape_free(tape);
}

/* --------------------------------------------------------------------------- residual_layernorm */
/* One kernel for the rows, one for the sums of the weight's and bias' gradients over the blocks. */
TEST(layernorm_backward_is_two_kernels)
{
#ifdef TAPEGRAD_CUDA_ON_HOST
    for (int residual = 0; residual < 2 && device_is_cuda(test_device()); residual++) {
        begin();
        Tensor *x = test_variable(tape, 1, shape(70, 48)), *w = test_variable(tape, 2, shape(48));
        Tensor *b = test_variable(tape, 3, shape(48));
        Tensor *out = residual ? op_residual_layernorm(tape, x, x, 0, w, b, 1)
                               : op_layernorm(tape, x, w, b, 1);
        Tensor *upstream = tape_input(tape, test_normal(9, 70 * 48), out->shape);
        const int64_t before = tapegrad_cuda_on_host_counts().work;
        tape_backward_from(tape, out, upstream);
        ck_assert_int_eq(tapegrad_cuda_on_host_counts().work - before, 2);
        tape_free(tape);
    }
#endif
}

/* Its values and mask; tests/operations.h has gradients and more shapes. */
TEST(residual_layernorm_equals_its_composition)
{
    const Shape sizes[] = { shape(7), shape(1, 1, 4), shape(50, 64), shape(5, 1027) };
    begin();
    for (int i = 0; i < 2 * 4; i++) {
        const Shape size = sizes[i / 2], row = shape(size.size[size.rank - 1]);
        const double p = i % 2 ? 0.4 : 0;
        Tensor *x = test_variable(tape, 1, size), *branch = test_variable(tape, 2, size);
        Tensor *w = test_variable(tape, 3, row), *b = test_variable(tape, 4, row);
        const Random start = tape_random(tape);
        Tensor *composed =
            op_layernorm(tape, op_add(tape, x, op_dropout(tape, branch, p)), w, b, 1e-5);
        const Random end = tape_random(tape);
        tape_set_random(tape, start);
        Tensor *out = op_residual_layernorm(tape, x, branch, p, w, b, 1e-5);
        assert_close(test_values(out), test_values(composed), shape_count(size), VALUE_TOLERANCE);
        ck_assert_uint_eq(tape_random(tape).counter, end.counter);
    }
    tape_free(tape);
}

/* Without weight and bias: values and gradients of a weight of ones and a bias of zeros */
TEST(layernorm_without_weight_and_bias)
{
    enum { ROWS = 5, C = 33 };
    Real *ones = test_zeros(C);
    for (int c = 0; c < C; c++)
        ones[c] = 1;
    for (int residual = 0; residual < 2; residual++) {
        Real *found[2][3];
        for (int given = 0; given < 2; given++) {
            begin();
            Tensor *x = test_variable(tape, 1, shape(ROWS, C));
            Tensor *branch = test_variable(tape, 2, shape(ROWS, C));
            Tensor *weight = given ? tape_input(tape, ones, shape(C)) : NULL;
            Tensor *bias = given ? tape_input(tape, test_zeros(C), shape(C)) : NULL;
            Tensor *out = residual
                              ? op_residual_layernorm(tape, x, branch, 0, weight, bias, 1e-5)
                              : op_layernorm(tape, op_add(tape, x, branch), weight, bias, 1e-5);
            found[given][0] = test_values(out);
            backward(out);
            found[given][1] = gradient(x);
            found[given][2] = gradient(branch);
            tape_free(tape);
        }
        for (int k = 0; k < 3; k++)
            assert_close(found[0][k], found[1][k], (int64_t)ROWS * C, VALUE_TOLERANCE);
    }
}

TEST(residual_layernorm_ignores_dropped_nan)
{
    enum { ROWS = 100, C = 3 };
    begin();
    Real *branch = test_normal(0, ROWS * C);
    for (int i = 0; i < ROWS * C; i++)
        branch[i] = (Real)NAN;
    Tensor *x = test_variable(tape, 1, shape(ROWS, C)), *w = test_variable(tape, 2, shape(C));
    Tensor *dropped = tape_variable(tape, branch, shape(ROWS, C));
    Real *mask = test_values(op_dropout(tape, dropped, 0.5));
    tape_seed(tape, 0);
    Tensor *out = op_residual_layernorm(tape, x, dropped, 0.5, w, w, 1);
    backward(out);
    int whole = 0;
    for (int row = 0; row < ROWS; row++) {
        bool all_dropped = true;
        for (int c = 0; c < C; c++)
            all_dropped &= !isnan(mask[row * C + c]);
        whole += all_dropped;
        for (int i = row * C; i < (row + 1) * C; i++) {
            ck_assert_int_eq(isnan(test_values(out)[i]) == 0, all_dropped);
            ck_assert_int_eq(isnan(gradient(x)[i]) == 0, all_dropped);
            ck_assert(isnan(mask[i]) || gradient(dropped)[i] == 0);
        }
    }
    ck_assert(whole > 0 && whole < ROWS);
    tape_free(tape);
}

/* --------------------------------------------------------------------------------------- misuse */
TEST(misuse_of_rows_raises)
{
    begin();
    Tensor *x = test_variable(tape, 1, shape(4, 5)), *w = test_variable(tape, 2, shape(5)),
           *short_w = test_variable(tape, 2, shape(4));
    assert_raises("op_layernorm: weight is [4], bias is [5], expected [5]: x is [4,5]",
                  op_layernorm(tape, x, short_w, w, 1));
    assert_raises("op_layernorm: weight is [5], bias is [4,5], expected [5]: x is [4,5]",
                  op_layernorm(tape, x, w, x, 1));
    assert_raises("op_layernorm: x is a scalar, expected one axis at least",
                  op_layernorm(tape, test_variable(tape, 1, shape_scalar()), w, w, 1));
    assert_raises("op_layernorm: eps is 0, expected more than 0", op_layernorm(tape, x, w, w, 0));
    assert_raises("op_layernorm: eps is inf, expected more than 0",
                  op_layernorm(tape, x, w, w, INFINITY));
    assert_raises("op_layernorm: eps is nan, expected more than 0",
                  op_layernorm(tape, x, w, w, NAN));
    assert_raises("op_layernorm: weight is [5], bias is [4], expected [5]: x is [4,5]",
                  op_layernorm(tape, x, NULL, short_w, 1));
    Tensor *scalar = test_variable(tape, 1, shape_scalar());
    assert_raises("op_residual_layernorm: x is NULL",
                  op_residual_layernorm(tape, NULL, x, 0, w, w, 1));
    assert_raises("op_residual_layernorm: branch is NULL",
                  op_residual_layernorm(tape, x, NULL, 0, w, w, 1));
    assert_raises("op_residual_layernorm: shapes differ: x is [4,5], branch is [5]",
                  op_residual_layernorm(tape, x, w, 0, w, w, 1));
    assert_raises("op_residual_layernorm: weight is [4], bias is [5], expected [5]: x is [4,5]",
                  op_residual_layernorm(tape, x, x, 0, short_w, w, 1));
    assert_raises("op_residual_layernorm: x is a scalar, expected one axis at least",
                  op_residual_layernorm(tape, scalar, scalar, 0, w, w, 1));
    assert_raises("op_residual_layernorm: eps is -1, expected more than 0",
                  op_residual_layernorm(tape, x, x, 0, w, w, -1));
    assert_raises("op_residual_layernorm: probability is 1, expected 0 or more and less than 1",
                  op_residual_layernorm(tape, x, x, 1, w, w, 1));
    assert_raises("op_residual_layernorm: probability is nan, expected 0 or more and less than 1",
                  op_residual_layernorm(tape, x, x, NAN, w, w, 1));
    assert_raises("op_softmax: x is NULL", op_softmax(tape, NULL));
    assert_raises("op_log_softmax: x is NULL", op_log_softmax(tape, NULL));
    assert_raises("op_dropout: x is NULL", op_dropout(tape, NULL, 0));
    assert_raises("op_dropout: probability is 1, expected 0 or more and less than 1",
                  op_dropout(tape, x, 1));
    assert_raises("op_dropout: probability is -0.5, expected 0 or more and less than 1",
                  op_dropout(tape, x, -0.5));
    assert_raises("op_dropout: probability is nan, expected 0 or more and less than 1",
                  op_dropout(tape, x, NAN));
    tape_free(tape);
}

/* Of equal logits the first counts, and a NaN as the largest; weights of 0 leave rows out. */
TEST(accuracy_counts_the_rows_whose_largest_logit_is_the_targets)
{
    begin();
    const Real logits[] = { 1, 3, 2, /* */ 0, 5, 5, /* */ 7, (Real)NAN, 9, /* */ -1, -2, -3 };
    const Real weights[] = { 1, 2, 0, (Real)0.5 }, zeros[] = { 0, 0, 0, 0 };
    const int32_t targets[] = { 1, 2, 1, 1 };
    Tensor *x = tape_variable(tape, logits, shape(2, 2, 3));
    Tensor *t = tape_input_i32(tape, targets, shape(2, 2));
    Tensor *of_all = op_accuracy(tape, x, t, NULL);
    ck_assert(tensor_item(of_all) == 0.5);
    ck_assert(!of_all->requires_grad);
    Tensor *w = tape_variable(tape, weights, shape(2, 2)); /* gets no gradient either */
    Tensor *of_some = op_accuracy(tape, x, t, w);
    ck_assert_double_eq_tol(tensor_item(of_some), 1 / 3.5, 1e-7);
    ck_assert(!of_some->requires_grad);
    ck_assert(isnan(tensor_item(op_accuracy(tape, x, t, tape_input(tape, zeros, shape(2, 2))))));
    const int32_t second = 1;
    x = tape_input(tape, logits, shape(3)); /* one row */
    ck_assert(tensor_item(
                  op_accuracy(tape, x, tape_input_i32(tape, &second, shape_scalar()), NULL)) == 1);
    tape_free(tape);
}

TEST(misuse_of_losses_raises)
{
    begin();
    const int32_t valid[] = { 0, 4, 2 }, high[] = { 0, 4, 5 }, low[] = { 0, -1, 5 };
    const Real weights[] = { 1, (Real)-0.5, 1, 1 }, zeros[] = { 0, 0, 0 };
    const Real nans[] = { 1, 1, (Real)NAN };
    Tensor *x = test_variable(tape, 1, shape(3, 5)), *t = tape_input_i32(tape, valid, shape(3));
    assert_raises("op_cross_entropy: targets[2] is 5, expected 0 to 4, the classes of logits",
                  op_cross_entropy(tape, x, tape_input_i32(tape, high, shape(3)), NULL));
    assert_raises("op_cross_entropy: targets[1] is -1, expected 0 to 4, the classes of logits",
                  op_cross_entropy(tape, x, tape_input_i32(tape, low, shape(3)), NULL));
    assert_raises("op_cross_entropy: targets is [1,3], expected [3]: logits is [3,5]",
                  op_cross_entropy(tape, x, tape_input_i32(tape, valid, shape(1, 3)), NULL));
    assert_raises("op_cross_entropy: logits is a scalar, expected one axis at least",
                  op_cross_entropy(tape, test_variable(tape, 1, shape_scalar()), t, NULL));
    assert_raises("op_cross_entropy: weights is [4], expected [3]: logits is [3,5]",
                  op_cross_entropy(tape, x, t, tape_input(tape, weights, shape(4))));
    assert_raises("op_cross_entropy: weights[1] is -0.5, expected 0 or more",
                  op_cross_entropy(tape, x, t, tape_input(tape, weights, shape(3))));
    assert_raises("op_cross_entropy: weights[2] is nan, expected 0 or more",
                  op_cross_entropy(tape, x, t, tape_input(tape, nans, shape(3))));
    assert_raises("op_cross_entropy: the weights of all 3 rows are 0, expected one above",
                  op_cross_entropy(tape, x, t, tape_input(tape, zeros, shape(3))));
    assert_raises("op_accuracy: targets[2] is 5, expected 0 to 4, the classes of logits",
                  op_accuracy(tape, x, tape_input_i32(tape, high, shape(3)), NULL));
    assert_raises("op_accuracy: targets is [1,3], expected [3]: logits is [3,5]",
                  op_accuracy(tape, x, tape_input_i32(tape, valid, shape(1, 3)), NULL));
    assert_raises("op_accuracy: targets has dtype Real, expected int32",
                  op_accuracy(tape, x, x, NULL));
    assert_raises("op_accuracy: logits is a scalar, expected one axis at least",
                  op_accuracy(tape, test_variable(tape, 1, shape_scalar()), t, NULL));
    assert_raises("op_accuracy: weights is [4], expected [3]: logits is [3,5]",
                  op_accuracy(tape, x, t, tape_input(tape, weights, shape(4))));
    assert_raises("op_accuracy: weights[1] is -0.5, expected 0 or more",
                  op_accuracy(tape, x, t, tape_input(tape, weights, shape(3))));
    assert_raises("op_accuracy: weights[2] is nan, expected 0 or more",
                  op_accuracy(tape, x, t, tape_input(tape, nans, shape(3))));
    assert_raises("op_accuracy: weights has dtype int32, expected Real",
                  op_accuracy(tape, x, t, t));
    assert_raises("op_accuracy: logits is NULL", op_accuracy(tape, NULL, t, NULL));
    assert_raises("op_cross_entropy: targets has dtype Real, expected int32",
                  op_cross_entropy(tape, x, x, NULL));
    assert_raises("op_cross_entropy: logits is NULL", op_cross_entropy(tape, NULL, t, NULL));
    assert_raises("op_cross_entropy: targets is NULL", op_cross_entropy(tape, x, NULL, NULL));
    assert_raises("op_mean_squared_error: shapes differ: prediction is [3,5], target is [5,3]",
                  op_mean_squared_error(tape, x, test_variable(tape, 1, shape(5, 3))));
    assert_raises("op_mean_squared_error: target is NULL", op_mean_squared_error(tape, x, NULL));
    tape_free(tape);
}

TEST(misuse_of_embedding_raises)
{
    begin();
    const int32_t *indices = integers(1, 300, 7);
    Tensor *weight = test_variable(tape, 1, shape(7, 5)),
           *in = tape_input_i32(tape, indices, shape(2, 3));
    int32_t high[300] = { 0 };
    high[299] = 7;
    assert_raises("op_embedding: indices[299] is 7, expected 0 to 6, the rows of weight",
                  op_embedding(tape, weight, tape_input_i32(tape, high, shape(300))));
    assert_raises("op_embedding: weight is [5], expected two axes, [V, D]",
                  op_embedding(tape, test_variable(tape, 1, shape(5)), in));
    assert_raises("op_embedding: indices is [1,2,1,3], expected 3 axes at most: out has one more",
                  op_embedding(tape, weight, tape_input_i32(tape, indices, shape(1, 2, 1, 3))));
    assert_raises("op_embedding: indices has dtype Real, expected int32",
                  op_embedding(tape, weight, weight));
    assert_raises("op_embedding: weight is NULL", op_embedding(tape, NULL, in));
    tape_free(tape);
}

int main(void)
{
    return test_main("rows", NULL, NULL);
}
