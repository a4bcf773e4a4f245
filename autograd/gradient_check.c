/* Gradients by the tape against central differences.
 *
 * For L = sum_i r_i out_i with fixed random r, the tape gives dL/dx by one backward pass from r.
 * (L(x + h e) - L(x - h e)) / 2h has the error h^2 L'''/6 + epsilon |L| / h, least near
 * h = cbrt(epsilon): the step that is used, relative to the size of x's element. */
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
    Real *values[MAX_INPUTS]; /* copies that the differences move */
    Tensor *variables[MAX_INPUTS];
} Check;

static void *allocate(size_t bytes)
{
    void *memory = memory_allocate(bytes);
    if (!memory)
        error_raise("gradient_check: memory is exhausted: %zu bytes wanted", bytes);
    return memory;
}

static Tensor *evaluate(Check *check)
{
    tape_reset(check->tape);
    tape_seed(check->tape, 1);
    for (int i = 0; i < check->count; i++)
        check->variables[i] = tape_variable(check->tape, check->values[i], check->shapes[i]);
    return check->function(check->tape, check->variables, check->context);
}

/* sum_i r_i out_i in double. */
static double weighted_sum(Check *check, const Real *weights, Real *out_values)
{
    Tensor *out = evaluate(check);
    tensor_read(out, out_values);
    double sum = 0;
    for (int64_t i = 0; i < tensor_count(out); i++)
        sum += (double)weights[i] * (double)out_values[i];
    return sum;
}

static double central_difference(Check *check, Real *x, const Real *weights, Real *out_values)
{
    const Real before = *x;
    const double epsilon = sizeof(Real) == sizeof(float) ? (double)FLT_EPSILON : DBL_EPSILON;
    const double h = cbrt(epsilon) * fmax(1, fabs((double)before));
    *x = (Real)((double)before + h);
    const double right = (double)*x, loss_right = weighted_sum(check, weights, out_values);
    *x = (Real)((double)before - h);
    const double left = (double)*x, loss_left = weighted_sum(check, weights, out_values);
    *x = before;
    return (loss_right - loss_left) / (right - left);
}

GradientCheck gradient_check(Device *device, CheckedFunction *function, void *context,
                             const CheckInput *inputs, int count)
{
    if (count < 1 || count > MAX_INPUTS)
        error_raise("gradient_check: %d inputs, expected 1 to %d", count, MAX_INPUTS);
    Check check = {
        .tape = tape_new(device), .function = function, .context = context, .count = count
    };
    Real *analytic[MAX_INPUTS], *numeric[MAX_INPUTS];
    for (int i = 0; i < count; i++) {
        size_t bytes = (size_t)shape_count(inputs[i].shape) * sizeof(Real);
        check.shapes[i] = inputs[i].shape;
        check.values[i] = memcpy(allocate(bytes), inputs[i].values, bytes);
        analytic[i] = memset(allocate(bytes), 0, bytes);
        numeric[i] = allocate(bytes);
    }

    Tensor *out = evaluate(&check);
    const int64_t out_count = tensor_count(out);
    Real *weights = allocate((size_t)out_count * sizeof(Real));
    Real *out_values = allocate((size_t)out_count * sizeof(Real));
    random_normal(&(Random){ .seed = 1 }, weights, out_count);
    tape_backward_from(check.tape, out, tape_input(check.tape, weights, out->shape));
    for (int i = 0; i < count; i++)
        if (check.variables[i]->has_gradient)
            tensor_read(tensor_gradient(check.variables[i]), analytic[i]);

    double largest = 1;
    for (int i = 0; i < count; i++)
        for (int64_t j = 0; j < shape_count(check.shapes[i]); j++) {
            double difference =
                central_difference(&check, &check.values[i][j], weights, out_values);
            numeric[i][j] = (Real)difference;
            largest = fmax(largest, fabs(difference));
        }

    GradientCheck worst = { .error = -1 };
    for (int i = 0; i < count; i++) {
        for (int64_t j = 0; j < shape_count(check.shapes[i]); j++) {
            double error = fabs((double)analytic[i][j] - (double)numeric[i][j]) / largest;
            if (!(error <= worst.error)) /* also when it is NaN */
                worst =
                    (GradientCheck){ error, i, j, (double)analytic[i][j], (double)numeric[i][j] };
        }
        free(check.values[i]);
        free(analytic[i]);
        free(numeric[i]);
    }
    free(weights);
    free(out_values);
    tape_free(check.tape);
    return worst;
}
