/* Exercise 2.1: the function keeps a record of the points where it is called, which shows a wrong h
 * or an x that is not restored. Other mistakes are known by their result. */
#include "exercise.h"
#include "../grade.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { X, DX, D }; /* D: the right gradient */

/* The calls of f by one call of gradient_error. */
static struct {
    const Real *start; /* x before them */
    int size, calls, other_size;
    bool right, left, moved[ELEMENTS];
    int together; /* the most elements that differ from the start in one call */
    int kept;     /* one of these, of an earlier call */
    double h;     /* the largest distance from the start */
} record;

static bool is_moved(const Real *x, int j)
{
    return fabs(x[j] - record.start[j]) > 1e-14 * fmax(1, fabs(x[j]));
}

/* f(x) = sum_j x_j sin x_(j+1), where x_0 follows the last one */
static double f(const Real *x, int n)
{
    record.calls++;
    if (n != record.size) {
        record.other_size = n;
        return 0;
    }
    int together = 0;
    double sum = 0;
    for (int j = 0; j < n; j++) {
        sum += x[j] * sin(x[(j + 1) % n]);
        if (!is_moved(x, j))
            continue;
        const double distance = x[j] - record.start[j];
        record.kept = together == 0 ? j : record.kept;
        record.right |= distance > 0;
        record.left |= distance < 0;
        record.h = fmax(record.h, fabs(distance));
        record.moved[j] = true;
        together++;
    }
    record.together = together > record.together ? together : record.together;
    return sum;
}

static double largest(const Real *values, int n)
{
    double result = 0;
    for (int j = 0; j < n; j++)
        result = fmax(result, fabs(values[j]));
    return result;
}

/* The right gradient, and dx with two wrong elements: the largest, by 5 %, and the sign of another,
 * a positive one in case 0, a negative one in case 1. All errors of a case have the same sign. In
 * case 2 an element between wrong ones is NaN. */
static void make(Case *c, int index)
{
    static const int sizes[CASES] = { 5, 3, 7 };
    const int n = c->size[0] = sizes[index];
    case_normal(c, index, X, n);
    const Real *x = c->in[X];
    Real *d = c->in[D], *dx = c->in[DX];
    int top = 0, other = -1;
    for (int j = 0; j < n; j++) {
        const int before = (j + n - 1) % n, after = (j + 1) % n;
        dx[j] = d[j] = sin(x[after]) + x[before] * cos(x[j]);
        top = fabs(d[j]) > fabs(d[top]) ? j : top;
    }
    for (int j = 0; j < n; j++)
        if (j != top && (d[j] > 0) == (index == 0) && (other < 0 || fabs(d[j]) > fabs(d[other])))
            other = j;
    dx[top] += (index == 0 ? -0.05 : 0.05) * fabs(d[top]);
    dx[other] = -d[other];
    double error = fmax(0.05 * fabs(d[top]), 2 * fabs(d[other])) / fabs(d[top]);
    if (index == 2) {
        dx[0] = d[0] + 5 * fabs(d[top]);
        dx[n - 2] = NAN;
        dx[n - 1] = d[n - 1] + 0.01;
        error = NAN;
    }
    case_right(c, 0, &error, 1, 1);
}

/* ------------------------------------------------------------------ mistakes known by the calls */
/* What differences with this h are off by */
static double difference_error(const Case *c, double h)
{
    const int n = c->size[0];
    double error = 0;
    Real x[ELEMENTS];
    memcpy(x, c->in[X], sizeof x);
    for (int j = 0; j < n; j++) {
        x[j] = c->in[X][j] + h;
        const double right = f(x, n);
        x[j] = c->in[X][j] - h;
        error = fmax(error, fabs((right - f(x, n)) / (2 * h) - c->in[D][j]));
        x[j] = c->in[X][j];
    }
    return error;
}

/* Says which mistake the calls of f show, or nothing. x is as gradient_error left it. */
static void judge_calls(const Case *c, const Real *x)
{
    const int n = record.size;
    int unmoved = n, changed = -1;
    for (int j = 0; j < n; j++) {
        unmoved = !record.moved[j] ? j : unmoved;
        changed = is_moved(x, j) ? j : changed;
    }
    const double h = record.h;
    if (record.calls == 0)
        say("f is never called: the body is still empty");
    else if (record.other_size)
        say("f is called with n = %d, expected %d", record.other_size, n);
    else if (h == 0)
        say("each call of f gets the same x: add h to x[j] before one, subtract it before the "
            "other, and take an h that changes x[j]");
    else if (record.together == n && changed < 0)
        say("all elements move in one call: move x[j] alone, or the difference is the sum of all "
            "derivatives");
    else if (record.together > 1 || changed >= 0)
        say("x[%d] is not restored after its differences: the next ones are taken at another x",
            record.together > 1 ? record.kept : changed);
    else if (!record.moved[1])
        say("only x[0] is moved: visit all n elements");
    else if (unmoved < n)
        say("x[%d] is never moved: visit all n elements", unmoved);
    else if (!record.right || !record.left)
        say("f is called on one side of x alone: the error of such a difference is near h |f''| / "
            "2, not h^2 |f'''| / 6");
    else if (h < 1e-7)
        say("h = %.0e is too small: the rounding error of these differences, epsilon |f| / h, is "
            "up to %.0e",
            h, DBL_EPSILON * fabs(f(c->in[X], n)) / h);
    else if (h > 3e-4)
        say("h = %.0e is too large: the truncation error of these differences, h^2 |f'''| / 6, is "
            "up to %.0e",
            h, difference_error(c, h));
}

/* Of a result that is not NaN although dx has one. */
static void judge_nan(const Case *c, double result)
{
    double all = 0, after = 0;
    for (int j = 0; j < c->size[0]; j++) {
        const double error = fabs(c->in[DX][j] - c->in[D][j]);
        all = fmax(all, error);
        after = isnan(error) ? 0 : fmax(after, error);
    }
    const double scale = largest(c->in[D], c->size[0]);
    if (fabs(result - after / scale) < 1e-6)
        say("a NaN is found, and a later element replaces it: once the error is NaN, keep it");
    else if (fabs(result - all / scale) < 1e-6)
        say("dx has a NaN, and it passes: all comparisons with NaN are false, and fmax ignores "
            "it. Test for it by isnan");
    else
        say("dx has a NaN, and the result is %.3g, expected NaN", result);
}

static bool near(double a, double b)
{
    return fabs(a - b) < 1e-3 * fabs(b);
}

static void student(const Case *c, const Gradient *out)
{
    static Real x[ELEMENTS], dx[ELEMENTS];
    memcpy(x, c->in[X], sizeof x);
    memcpy(dx, c->in[DX], sizeof dx);
    memset(&record, 0, sizeof record);
    record.start = c->in[X];
    record.size = c->size[0];
    const double result = gradient_error(f, x, c->size[0], dx), h = record.h;
    judge_calls(c, x);
    const double ratio = largest(dx, c->size[0]) / largest(c->in[D], c->size[0]);
    if (isnan(c->in[DX][c->size[0] - 2])) {
        if (!isnan(result))
            judge_nan(c, result);
    } else if (isnan(result))
        say("the result is NaN, and no element of dx is: check what it is divided by");
    else if (near(result * h * h, ratio))
        say("/ 2 * h divides by 2 and multiplies by h: write / (2 * h)");
    else if (near(result * 2 * h, ratio))
        say("the two values of f are subtracted, and not divided by their distance, 2 h");
    out[0].data[0] = result;
}

/* ----------------------------------------------------------------- mistakes known by the result */
typedef struct Sums {
    double max, half, signless, above, below, own, sum, squares; /* of errors, in some sense */
    double scale, scale_dx, squares_d;
} Sums;

static Sums sums(const Case *c)
{
    const int n = c->size[0];
    Sums s = { .scale = largest(c->in[D], n), .scale_dx = largest(c->in[DX], n) };
    for (int j = 0; j < n; j++) {
        const double dx = c->in[DX][j], d = c->in[D][j];
        s.max = fmax(s.max, fabs(dx - d));
        s.half = fmax(s.half, fabs(dx - 2 * d));
        s.signless = fmax(s.signless, fabs(fabs(dx) - fabs(d)));
        s.above = fmax(s.above, dx - d);
        s.below = fmax(s.below, d - dx);
        s.own = fmax(s.own, fabs(dx - d) / fabs(d));
        s.sum += fabs(dx - d);
        s.squares += (dx - d) * (dx - d);
        s.squares_d += d * d;
    }
    return s;
}

#define RESULT(name, value)                                                                        \
    static void name(const Case *c, const Gradient *out)                                           \
    {                                                                                              \
        const Sums s = sums(c);                                                                    \
        out[0].data[0] = value;                                                                    \
    }
RESULT(divided_by_h, s.half / (2 * s.scale))
RESULT(without_signs, s.signless / s.scale)
RESULT(only_above, s.above / s.scale)
RESULT(only_below, s.below / s.scale)
RESULT(absolute, s.max)
RESULT(by_each, s.own)
RESULT(by_dx, s.max / s.scale_dx)
RESULT(added, s.sum / s.scale)
RESULT(mean, s.sum / c->size[0] / s.scale)
RESULT(norms, sqrt(s.squares / s.squares_d))

int main(void)
{
    return grade(&(Exercise){
        .name = "gradient_error",
        .outputs = { "error" },
        .fills = true,
        .tolerance = 1e-6,
        .make = make,
        .student = student,
        .mistakes = {
            { divided_by_h, "the differences are twice the derivatives: x + h and x - h are 2 h "
                            "apart" },
            { without_signs, "a gradient of the wrong sign passes: compare the numbers, not their "
                             "absolute values" },
            { only_above, "dx - difference is used with its sign, so that a dx below the "
                          "difference passes: take fabs" },
            { only_below, "difference - dx is used with its sign, so that a dx above the "
                          "difference passes: take fabs" },
            { absolute, "the error is not divided by the largest |difference|: what is large "
                        "depends on the size of the gradient" },
            { by_each, "each error is divided by its own difference: where a derivative is near 0, "
                       "that is rounding error divided by almost 0" },
            { by_dx, "the error is divided by the largest |dx|, which may be wrong itself: take "
                     "the differences'" },
            { added, "the errors are added: return the largest, so that it does not depend on n" },
            { mean, "the mean of the errors: a wrong element disappears among thousands of right "
                    "ones" },
            { norms, "the ratio of two norms: a wrong element disappears among thousands of right "
                     "ones" },
        },
    });
}
