/* The tape's gradients against finite differences.
 *
 * For L = sum_i r_i out_i with fixed random r, one backward pass from r gives dL/dx. The central
 * difference (L(x + h e) - L(x - h e)) / 2h has the error h^2 L'''/6 + epsilon |L| / h, which is
 * least near h = cbrt(epsilon). That step is used, times max(1, |x's element|). */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/tape.h"
#include "tensor/internal.h"

enum { MAX_INPUTS = NODE_INPUTS };

typedef struct Check {
    Tape *tape;
    CheckedFunction *function;
    void *context;
    int count;
    Shape shapes[MAX_INPUTS];
    Real *values[MAX_INPUTS]; /* copies, which the differences perturb */
    Real *analytic[MAX_INPUTS];
    Tensor *variables[MAX_INPUTS];
    Real *weights, *out; /* r and the values of out */
} Check;

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
    }
}

static void free_all(Check *check)
{
    for (int i = 0; i < check->count; i++) {
        free(check->values[i]);
        free(check->analytic[i]);
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
    const double epsilon = sizeof(Real) == sizeof(float) ? (double)FLT_EPSILON : DBL_EPSILON;
    const double h = cbrt(epsilon) * fmax(1, fabs((double)before));
    *x = (Real)((double)before + h);
    const double right = (double)*x, loss_right = weighted_sum(check);
    *x = (Real)((double)before - h);
    const double left = (double)*x, loss_left = weighted_sum(check);
    *x = before;
    return (loss_right - loss_left) / (right - left);
}

/* The gradients that differ most, or the first NaN. */
static GradientCheck compare(Check *check)
{
    GradientCheck worst = { .error = -1 };
    double scale = 1;
    for (int i = 0; i < check->count && !isnan(worst.error); i++)
        for (int64_t j = 0; j < shape_count(check->shapes[i]) && !isnan(worst.error); j++) {
            const double analytic = (double)check->analytic[i][j];
            const double numeric = central_difference(check, &check->values[i][j]);
            const double error = fabs(analytic - numeric);
            if (error > worst.error || isnan(error))
                worst = (GradientCheck){ error, i, j, analytic, numeric };
            scale = fmax(scale, fabs(numeric));
        }
    worst.error /= scale;
    return worst;
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
    analytic_gradients(&check);
    GradientCheck worst = compare(&check);
    free_all(&check);
    return worst;
}
