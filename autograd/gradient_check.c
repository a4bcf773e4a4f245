/* The tape's gradients against finite differences.
 *
 * For L = sum_i r_i out_i with fixed random r, one backward pass from r gives dL/dx. The central
 * difference (L(x + h e) - L(x - h e)) / 2h has the error h^2 L'''/6 + epsilon |L| / h, which is
 * least near h = cbrt(epsilon). Here epsilon is the relative rounding error of a Real. That step is
 * used, times max(1, |x's element|).
 *
 * The typical |L| is |out|, its standard deviation over r, and the error of a difference is near
 * 2e-5 |out| in float, 4e-11 |out| in double. An input's error is relative to its own largest
 * gradient, but to no less than |out| / 100: of smaller gradients the differences have too few
 * digits. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/internal.h"

enum { MAX_INPUTS = NODE_INPUTS };

typedef struct Check {
    Tape *tape;
    CheckedFunction *function;
    void *context;
    int count;
    Shape shapes[MAX_INPUTS];
    Real *values[MAX_INPUTS]; /* copies, which the differences perturb */
    Real *analytic[MAX_INPUTS], *numeric[MAX_INPUTS];
    Tensor *variables[MAX_INPUTS];
    Real *weights, *out; /* r and the values of out */
    Shape out_shape;
    double min_scale; /* |out| / 100 */
} Check;

static const double real_epsilon = sizeof(Real) == sizeof(float) ? FLT_EPSILON : DBL_EPSILON;

static void *allocate_values(size_t bytes)
{
    void *memory = memory_allocate(bytes);
    if (!memory)
        error_raise("gradient_check: memory is exhausted: %lld bytes requested", (long long)bytes);
    return memory;
}

static void allocate_inputs(Check *check, const CheckInput *inputs)
{
    for (int i = 0; i < check->count; i++) {
        check->shapes[i] = shape_new(inputs[i].shape.rank, inputs[i].shape.size);
        size_t bytes = (size_t)shape_count(check->shapes[i]) * sizeof(Real);
        check->values[i] = memcpy(allocate_values(bytes), inputs[i].values, bytes);
        check->analytic[i] = memset(allocate_values(bytes), 0, bytes);
        check->numeric[i] = allocate_values(bytes);
    }
}

static void free_all(Check *check)
{
    for (int i = 0; i < check->count; i++) {
        free(check->values[i]);
        free(check->analytic[i]);
        free(check->numeric[i]);
    }
    free(check->weights);
    free(check->out);
    tape_free(check->tape);
}

static Tensor *evaluate(Check *check)
{
    tape_reset(check->tape);
    tape_seed(check->tape, 1);
    for (int i = 0; i < check->count; i++)
        check->variables[i] = tape_variable(check->tape, check->values[i], check->shapes[i]);
    return check->function(check->tape, check->variables, check->context);
}

/* Draws r and runs the backward pass from it. */
static void analytic_gradients(Check *check)
{
    Tensor *out = evaluate(check);
    if (!out) {
        free_all(check);
        error_raise("gradient_check: the function returned NULL, expected a tensor");
    }
    const int64_t count = tensor_count(out);
    check->weights = allocate_values((size_t)count * sizeof(Real));
    check->out = allocate_values((size_t)count * sizeof(Real));
    random_normal(&(Random){ .seed = 1 }, check->weights, count);
    tensor_read(out, check->out);
    check->out_shape = out->shape;
    double squares = 0;
    for (int64_t i = 0; i < count; i++)
        squares += (double)check->out[i] * (double)check->out[i];
    check->min_scale = sqrt(squares) / 100;
    tape_backward_from(check->tape, out, tape_input(check->tape, check->weights, out->shape));
    for (int i = 0; i < check->count; i++)
        if (check->variables[i]->has_gradient)
            tensor_read(tensor_gradient(check->variables[i]), check->analytic[i]);
}

/* sum_i r_i out_i in double. */
static double weighted_sum(Check *check)
{
    Tensor *out = evaluate(check);
    tensor_read(out, check->out);
    double sum = 0;
    for (int64_t i = 0; i < tensor_count(out); i++)
        sum += (double)check->weights[i] * (double)check->out[i];
    return sum;
}

static double central_difference(Check *check, Real *x)
{
    const Real before = *x;
    const double h = cbrt(real_epsilon) * fmax(1, fabs((double)before));
    *x = (Real)((double)before + h);
    const double right = (double)*x, loss_right = weighted_sum(check);
    *x = (Real)((double)before - h);
    const double left = (double)*x, loss_left = weighted_sum(check);
    *x = before;
    return (loss_right - loss_left) / (right - left);
}

/* The gradients of input i that differ most, or the first NaN. */
static GradientCheck compare_input(Check *check, int i)
{
    GradientCheck worst = { .error = -1 };
    double scale = check->min_scale;
    for (int64_t j = 0; j < shape_count(check->shapes[i]); j++) {
        const double analytic = (double)check->analytic[i][j];
        const double numeric = central_difference(check, &check->values[i][j]);
        const double error = fabs(analytic - numeric);
        if (!isnan(worst.error) && !(error <= worst.error))
            worst = (GradientCheck){ error, i, j, analytic, numeric, "" };
        scale = fmax(scale, fabs(numeric));
        check->numeric[i][j] = (Real)numeric;
    }
    worst.error = worst.error == 0 ? 0 : worst.error / scale;
    return worst;
}

/* The input of the largest error, or the first of NaN. */
static GradientCheck compare(Check *check)
{
    GradientCheck worst = compare_input(check, 0);
    for (int i = 1; i < check->count && !isnan(worst.error); i++) {
        const GradientCheck next = compare_input(check, i);
        worst = next.error <= worst.error ? worst : next;
    }
    return worst;
}

/* ------------------------------------------------------------------------------------- patterns
 * One input's gradients a on the tape and n by differences. A pattern explains their difference if
 * it leaves at most a twentieth of it. */
typedef struct Wrong {
    const Real *a, *n;
    int64_t count, rows, columns;
    double left; /* a twentieth of max |a - n| */
} Wrong;

/* The number of elements that are NaN; or 0 where n is not, if these are all that differ. */
static int64_t count_unwritten(const Wrong *w, bool nan, bool *are_last)
{
    int64_t found = 0, first = -1;
    for (int64_t j = 0; j < w->count; j++) {
        const double difference = fabs((double)w->a[j] - (double)w->n[j]);
        const bool unwritten = nan ? isnan(w->a[j]) : w->a[j] == 0 && difference > w->left;
        if (!nan && !unwritten && difference > w->left)
            return 0;
        first = unwritten && first < 0 ? j : first;
        found += unwritten;
    }
    *are_last = first > 0 && first + found == w->count;
    return found;
}

/* The k with a = k n, or NaN. */
static double constant_ratio(const Wrong *w)
{
    double an = 0, nn = 0, left = 0;
    for (int64_t j = 0; j < w->count; j++) {
        an += (double)w->a[j] * (double)w->n[j];
        nn += (double)w->n[j] * (double)w->n[j];
    }
    for (int64_t j = 0; j < w->count; j++) {
        const double left_j = fabs((double)w->a[j] - an / nn * (double)w->n[j]);
        left = left_j > left ? left_j : left; /* gcc 12 for ARM ends at a loop of fmax */
    }
    return left <= w->left ? an / nn : (double)NAN;
}

/* Whether each matrix of a, of the last two axes, is n's stored column by column. */
static bool is_transposed(const Wrong *w, Shape shape)
{
    if (shape.rank < 2)
        return false;
    const int64_t R = shape.size[shape.rank - 2], C = w->columns;
    for (int64_t j = 0; j < w->count; j++) {
        const int64_t r = j / C % R, c = j % C;
        const Real transposed = w->a[j / (R * C) * (R * C) + c * R + r];
        if (!(fabs((double)transposed - (double)w->n[j]) <= w->left))
            return false;
    }
    return true;
}

/* Whether each row of a - n is a multiple of x's, or, if x is NULL, constant. */
static bool is_multiple_per_row(const Wrong *w, const Real *x)
{
    for (int64_t r = 0; r < w->rows; r++) {
        double dx = 0, xx = 0;
        for (int64_t j = r * w->columns; j < (r + 1) * w->columns; j++) {
            const double factor = x ? (double)x[j] : 1;
            dx += ((double)w->a[j] - (double)w->n[j]) * factor;
            xx += factor * factor;
        }
        for (int64_t j = r * w->columns; j < (r + 1) * w->columns; j++) {
            const double model = xx > 0 ? dx / xx * (x ? (double)x[j] : 1) : 0;
            if (!(fabs((double)w->a[j] - (double)w->n[j] - model) <= w->left))
                return false;
        }
    }
    return w->columns > 2; /* any row of one element is a multiple, many of two nearly */
}

static void describe_mistake(Check *check, GradientCheck *worst)
{
    const Shape shape = check->shapes[worst->input];
    Wrong w = { check->analytic[worst->input],
                check->numeric[worst->input],
                shape_count(shape),
                shape_rows(shape),
                shape_columns(shape),
                fabs(worst->analytic - worst->numeric) / 20 };
    weighted_sum(check); /* out of the given values */
    const bool nan = isnan(worst->analytic);
    bool are_last = false;
    const int64_t unwritten = count_unwritten(&w, nan, &are_last);
    const double ratio = constant_ratio(&w);
    char *text = worst->pattern;
    const size_t size = sizeof worst->pattern;
    if (unwritten)
        snprintf(text, size, "%s%lld of %lld elements are %s: never written?",
                 are_last ? "the last " : "", (long long)unwritten, (long long)w.count,
                 nan ? "NaN" : "0");
    else if (!isnan(ratio) && w.count > 1)
        snprintf(text, size, "%.3g times the differences", ratio);
    else if (is_transposed(&w, shape))
        snprintf(text, size, "the transpose of the differences");
    else if (shape_equal(shape, check->out_shape) && is_multiple_per_row(&w, check->out))
        snprintf(text, size, "off by a multiple of out in each row");
    else if (is_multiple_per_row(&w, NULL))
        snprintf(text, size, "off by a constant in each row");
}

GradientCheck gradient_check(Device *device, CheckedFunction *function, void *context,
                             const CheckInput *inputs, int count)
{
    if (count < 1 || count > MAX_INPUTS)
        error_raise("gradient_check: %d inputs, expected 1 to %d", count, MAX_INPUTS);
    if (!function)
        error_raise("gradient_check: function is NULL");
    for (int i = 0; i < count; i++)
        if (!inputs[i].values)
            error_raise("gradient_check: inputs[%d].values is NULL", i);
    Check check = { .function = function, .context = context, .count = count };
    allocate_inputs(&check, inputs);
    check.tape = tape_new(device);
    check.tape->fills_gradients = true;
    analytic_gradients(&check);
    GradientCheck worst = compare(&check);
    if (!(worst.error <= sqrt(real_epsilon)))
        describe_mistake(&check, &worst);
    free_all(&check);
    return worst;
}
