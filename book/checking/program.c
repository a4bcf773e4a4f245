/* The numbers of chapter 2: the error of a difference against h; gradient_check of a right and of
 * five wrong backward functions; what it does not find. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tapegrad.h>

/* |difference - f'(1)| of f(x) = x e^x, f'(x) = (1 + x) e^x. Rounding moves both points. */
static double error_double(double left, double right)
{
    return fabs((right * exp(right) - left * exp(left)) / (right - left) - 2 * exp(1));
}

static double error_float(float left, float right)
{
    const float rise = right * expf(right) - left * expf(left);
    return fabs((double)(rise / (right - left)) - 2 * exp(1));
}

/* Prints h, the bound h^2 |f'''| / 6 + epsilon |f| / h, and the error; returns whether it holds. */
static bool print_best(const char *name, double h, double epsilon, double error)
{
    const double bound = h * h * 4 * exp(1) / 6 + epsilon * exp(1) / h;
    printf("%-6s  %.1e  %.1e  %.1e\n", name, h, bound, error);
    return error <= bound;
}

static enum { RIGHT, SIGN, FACTOR, SUM, UNWRITTEN, STORED } fault;

/* out_i = x_i / s, s = sum_j x_j. Backward: dx_k <- (g_k - sum_i g_i out_i) / s, g = dL/dout */
static void share_backward(Node *node)
{
    Tensor *x = node->inputs[0], *out = node->outputs[0];
    Gradient dx = tape_contribution(node, x);
    const Real *g = tape_upstream(node, 0);
    const int64_t n = tensor_count(x);
    Real s = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        s += x->data[i];
        sum += g[i] * out->data[i];
    }
    dx.accumulate &= fault != STORED;
    for (int64_t k = 0; k < n - (fault == UNWRITTEN); k++) {
        Real value = (g[k] - sum) / s;
        if (fault == SIGN)
            value = -value;
        else if (fault == FACTOR)
            value *= s;
        else if (fault == SUM)
            value = g[k] / s;
        gradient_add(dx, k, value);
    }
}

static Tensor *share(Tape *tape, Tensor *const *inputs, void *context)
{
    Tensor *x = inputs[0], *out = tape_tensor(tape, x->shape);
    Real s = 0;
    for (int64_t i = 0; i < tensor_count(x); i++)
        s += x->data[i];
    for (int64_t i = 0; i < tensor_count(x); i++)
        out->data[i] = x->data[i] / s;
    tape_record(tape, (Node){ "share", share_backward, .inputs = { x }, .outputs = { out } });
    return context ? op_sum(tape, out, ALL_AXES) : out;
}

static Tensor *share_twice(Tape *tape, Tensor *const *inputs, void *context)
{
    return op_add(tape, share(tape, inputs, context), share(tape, inputs, context));
}

static Tensor *relu(Tape *tape, Tensor *const *inputs, void *context)
{
    (void)context;
    return op_relu(tape, inputs[0]);
}

/* Prints what the check finds; returns whether it passes. */
static bool check(const char *name, CheckedFunction *function, void *context, const Real *values)
{
    const CheckInput x = { shape(4), values };
    GradientCheck c = gradient_check(device_open("plain"), function, context, &x, 1);
    printf("%-11s error %.1e\n", name, c.error);
    if (!(c.error <= 2e-3))
        printf("  dx[%d] tape %.4f differences %.4f\n", (int)c.element, c.analytic, c.numeric);
    for (const char *line = strtok(c.pattern, ":"); line; line = strtok(NULL, ":"))
        printf("  %s\n", line); /* two short lines fit a phone */
    return c.error <= 2e-3;
}

int main(void)
{
    printf("[errors]\n    h   one side   central     float\n");
    for (int i = 1; i <= 12; i++) {
        const double h = pow(10, -i);
        const float left = (float)(1 - h), right = (float)(1 + h);
        printf("1e-%02d  %9.1e %9.1e", i, error_double(1, 1 + h), error_double(1 - h, 1 + h));
        printf(left < right ? " %9.1e\n" : "     0 / 0\n", error_float(left, right));
    }
    printf("[best]\n           h     bound    error\n");
    const double h32 = cbrt(3 * FLT_EPSILON / 4), h64 = cbrt(3 * DBL_EPSILON / 4);
    bool right =
        print_best("float", h32, FLT_EPSILON, error_float((float)(1 - h32), (float)(1 + h32)));
    right &= print_best("double", h64, DBL_EPSILON, error_double(1 - h64, 1 + h64));

    static const char *const names[] = { "right", "sign", "factor", "sum", "unwritten" };
    static const Real x[4] = { 0.5, 1, 1.5, 2 }, kink[4] = { 1.0 / 1024, -1, 1, 2 };
    printf("[faults]\n");
    for (fault = RIGHT; fault < STORED; fault++)
        right &= check(names[fault], share, NULL, x) == (fault == RIGHT);
    printf("[stored]\n");
    right &= check("used once", share, NULL, x) && !check("used twice", share_twice, NULL, x);
    fault = SIGN;
    printf("[ones]\n");
    right &= check("sign, r = 1", share, /*sum*/ &fault, x);
    printf("[kink]\n");
    right &= !check("relu", relu, NULL, kink);
    return !right;
}
