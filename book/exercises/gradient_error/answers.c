/* Answers to exercise 2.1 */
#include "exercise.h"
#include "../answer.h"

#include <math.h>

static double step(double x)
{
    return is("tiny")            ? 1e-12
           : is("vanishing")     ? 1e-20
           : is("large")         ? 0.1
           : is("relative_step") ? 1e-5 * fmax(1, fabs(x))
                                 : 1e-5;
}

/* x_j, or all of x, moves by h. */
static void move(Real *x, int j, double h, int n)
{
    for (int i = 0; i < n; i++)
        x[i] += i == j || is("together") ? h : 0;
}

static double difference(Function *f, Real *x, int j, int n)
{
    const double before = x[j], h = step(before);
    const int size = n - is("other_size");
    move(x, j, h, n);
    const double up = f(x, size);
    move(x, j, is("one_side") ? -h : -2 * h, n);
    const double down = f(x, size);
    move(x, j, is("one_side") ? 0 : h, n);
    x[j] = is("kept") || (is("last_kept") && j == n - 1) ? before - h : before;
    return is("precedence")                       ? (up - down) / 2 * h
           : is("undivided")                      ? up - down
           : is("divided_by_h") || is("one_side") ? (up - down) / h
                                                  : (up - down) / (2 * h);
}

static double error_of(double dx, double difference)
{
    return is("without_signs") ? fabs(fabs(dx) - fabs(difference))
           : is("only_above")  ? dx - difference
           : is("only_below")  ? difference - dx
           : is("by_each")     ? fabs(dx - difference) / fabs(difference)
                               : fabs(dx - difference);
}

double gradient_error(Function *f, Real *x, int n, const Real *dx)
{
    double error = 0, scale = 0, sum = 0, squares = 0, squared_errors = 0;
    for (int j = 0; j < (is("first_alone") ? 1 : n - is("last_missing")); j++) {
        const double numeric = difference(f, x, j, n), e = error_of(dx[j], numeric);
        if (is("nan_passes"))
            error = fmax(error, e);
        else
            error = (isnan(error) && !is("nan_lost")) || e <= error ? error : e;
        scale = fmax(scale, fabs(is("by_dx") ? dx[j] : numeric));
        sum += e;
        squares += numeric * numeric;
        squared_errors += e * e;
    }
    return is("absolute") || is("by_each")  ? error
           : is("added")                    ? sum / scale
           : is("mean")                     ? sum / n / scale
           : is("norms")                    ? sqrt(squared_errors / squares)
           : is("infinite") && isnan(error) ? INFINITY
           : is("unknown")                  ? (error + 0.5) / scale
           : is("nothing")                  ? NAN
                                            : error / scale;
}
