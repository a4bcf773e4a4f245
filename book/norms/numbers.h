/* For program.c: the norms of the page and their gradients in double, and lines of C numbers that
 * show these gradients beside central differences and the library's. */
#ifndef NORMS_NUMBERS_H
#define NORMS_NUMBERS_H

#include <math.h>
#include <stdio.h>
#include <tapegrad.h>

enum { C = 4, D = 2 }; /* elements of a row; inputs of the layer before a norm */
static bool failed;

typedef struct Norm {
    bool centered; /* whether the mean is removed */
    double s, eps;
} Norm;

static const Norm LAYER = { true, 1.0 / C, 1e-5 };
static const double X[2 * C] = { 9, 1, 3, 3, 0, 4, 2, 2 }; /* most sections use the first row */
static const double H[C] = { 1, -1, 4, 0 };                /* its dL/dn */

static double dot(const double *a, const double *b)
{
    double sum = 0;
    for (int c = 0; c < C; c++)
        sum += a[c] * b[c];
    return sum;
}

static double mean_of(const double *a)
{
    return dot(a, (double[C]){ 1, 1, 1, 1 }) / C;
}

/* n of a row x; returns r */
static double normalize(const Norm *norm, double *n, const double *x)
{
    const double m = norm->centered ? mean_of(x) : 0;
    double squares = 0;
    for (int c = 0; c < C; c++)
        squares += (x[c] - m) * (x[c] - m);
    const double r = 1 / sqrt(norm->s * squares + norm->eps);
    for (int c = 0; c < C; c++)
        n[c] = (x[c] - m) * r;
    return r;
}

/* dx = r (h - mean h - s n sum of h n), the mean only if it is removed; returns r */
static double norm_backward(const Norm *norm, double *dx, const double *h, const double *x)
{
    double n[C];
    const double r = normalize(norm, n, x), mean = norm->centered ? mean_of(h) : 0;
    for (int j = 0; j < C; j++)
        dx[j] = r * (h[j] - mean - norm->s * n[j] * dot(h, n));
    return r;
}

static double shown(double v) /* 0 for -0.000 */
{
    return fabs(v) < 5e-4 ? 0 : v;
}

/* 39 columns, which a phone shows */
static void row(const char *label, const double *v)
{
    printf("%-11s", label);
    for (int c = 0; c < C; c++)
        printf("%7.3f", shown(v[c]));
    printf("\n");
}

static void compare(double mine, double expected, double tolerance)
{
    failed |= !(fabs(mine - expected) <= tolerance * fmax(1, fabs(expected)));
}

static double loss_of(const Norm *norm, const double *x, const double *h)
{
    double n[C];
    normalize(norm, n, x);
    return dot(n, h);
}

/* Prints dL/dx of L = sum of h n by central differences, if there is a label. dx must agree. */
static void check(const char *label, const Norm *norm, const double *dx, const double *h,
                  const double *x)
{
    const double step = 1e-6;
    double differences[C];
    for (int j = 0; j < C; j++) {
        double right[C] = { x[0], x[1], x[2], x[3] }, left[C] = { x[0], x[1], x[2], x[3] };
        right[j] += step;
        left[j] -= step;
        differences[j] = (loss_of(norm, right, h) - loss_of(norm, left, h)) / (2 * step);
        compare(dx[j], differences[j], 1e-6);
    }
    if (label)
        row(label, differences);
}

/* Prints a gradient of the library, in float, which must be near expected. */
static void library(const Tensor *gradient, const double *expected)
{
    double v[C];
    for (int c = 0; c < C; c++) {
        v[c] = (double)gradient->data[c];
        compare(v[c], expected[c], 1e-5);
    }
    row("the library", v);
}

static Tensor *tensor(Tape *tape, const double *v, Shape shape)
{
    Real copy[2 * C];
    for (int64_t i = 0; i < shape_count(shape); i++)
        copy[i] = (Real)v[i];
    return tape_variable(tape, copy, shape);
}

#endif
