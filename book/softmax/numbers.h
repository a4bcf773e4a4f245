/* For program.c: the functions whose gradients the page derives, and lines of C numbers that show
 * these gradients beside central differences and the library's. */
#ifndef SOFTMAX_NUMBERS_H
#define SOFTMAX_NUMBERS_H

#include <math.h>
#include <stdio.h>
#include <tapegrad.h>

enum { C = 3 }; /* classes */
static bool failed;

/* A function out [C] of x [C] */
typedef void Function(double *out, const double *x);

static void log_softmax(double *out, const double *x)
{
    const double m = fmax(x[0], fmax(x[1], x[2]));
    for (int c = 0; c < C; c++)
        out[c] = (x[c] - m) - log(exp(x[0] - m) + exp(x[1] - m) + exp(x[2] - m));
}

static void softmax(double *out, const double *x)
{
    log_softmax(out, x);
    for (int c = 0; c < C; c++)
        out[c] = exp(out[c]);
}

static void softmax_of_half(double *out, const double *x) /* temperature 2 */
{
    softmax(out, (double[C]){ x[0] / 2, x[1] / 2, x[2] / 2 });
}

static void log_sum_exp(double *out, const double *x) /* in out_1; the others are 0 */
{
    log_softmax(out, x);
    out[0] = x[0] - out[0];
    out[1] = out[2] = 0;
}

static void logarithm(double *out, const double *p)
{
    for (int c = 0; c < C; c++)
        out[c] = log(p[c]);
}

static double sum_of_products(const double *p, const double *g)
{
    return p[0] * g[0] + p[1] * g[1] + p[2] * g[2];
}

/* 39 columns, the width of a phone */
static void row(const char *label, const double *v)
{
    printf("%-12s", label);
    for (int c = 0; c < C; c++)
        printf("%9.*f", fabs(v[c]) < 100 ? 4 : 3,
               isnan(v[c]) ? fabs(v[c]) : v[c] + 0); /* no -nan, -0 */
    printf("\n");
}

/* dx of L = sum_c g_c out_c by central differences */
static void differences(double *dx, Function *f, const double *x, const double *g)
{
    const double h = 1e-5;
    for (int j = 0; j < C; j++) {
        double right[C], left[C], moved[C] = { x[0], x[1], x[2] };
        moved[j] = x[j] + h;
        f(right, moved);
        moved[j] = x[j] - h;
        f(left, moved);
        dx[j] = (sum_of_products(right, g) - sum_of_products(left, g)) / (2 * h);
    }
}

/* Prints the central differences. dx must agree with them. */
static void check(const char *label, const double *dx, Function *f, const double *x,
                  const double *g)
{
    double expected[C];
    differences(expected, f, x, g);
    for (int c = 0; c < C; c++)
        failed |= !(fabs(dx[c] - expected[c]) < 1e-7);
    row(label, expected);
}

static Tensor *variable(Tape *tape, const double *x, int rows)
{
    Real copy[2 * C];
    for (int i = 0; i < rows * C; i++)
        copy[i] = (Real)x[i];
    return tape_variable(tape, copy, shape(rows, C));
}

/* Prints row r of a result of the library, in float. It must be near expected, if that is given. */
static void result(const char *label, const Tensor *tensor, int r, const double *expected)
{
    double v[C];
    for (int c = 0; c < C; c++) {
        v[c] = (double)tensor->data[r * C + c];
        failed |= expected && !(fabs(v[c] - expected[c]) < 1e-5);
    }
    row(label, v);
}

static Tensor *log_of_softmax(Tape *tape, Tensor *x) /* in two operations */
{
    return op_log(tape, op_softmax(tape, x));
}

typedef Tensor *Operation(Tape *tape, Tensor *x);

/* Prints the library's out, if it has a label, and dx for dL/dout = g, if g is given. */
static void library(const char *label, Operation *operation, const double *x, const double *g,
                    const double *expected)
{
    Tape *tape = tape_new(device_open("plain"));
    Tensor *input = variable(tape, x, 1), *out = tensor_keep(operation(tape, input));
    if (label)
        result(label, out, 0, NULL);
    if (g) {
        tape_backward_from(tape, out, variable(tape, g, 1));
        result(label ? "dx" : "library", tensor_gradient(input), 0, expected);
    }
    tape_free(tape);
}

#endif
