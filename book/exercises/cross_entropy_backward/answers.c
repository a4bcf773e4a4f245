/* Answers to exercise 5.2 */
#include "exercise.h"
#include "../answer.h"

#include <math.h>

static Real factor_of(Real g, int N, int C)
{
    return is("without_mean")       ? g
           : is("mean_twice")       ? g / N / N
           : is("mean_of_elements") ? g / (N * C)
           : is("bare")             ? 1
           : is("without_g")        ? 1 / (Real)N
           : is("negative")         ? -g / N
                                    : g / N;
}

static Real maximum(const Real *x, int n)
{
    Real m = is("max_from_0") ? 0 : x[0];
    for (int c = 1; c < n; c++)
        m = fmax(m, x[c]);
    return is("no_max") || is("log_without_max") ? 0 : m;
}

static void add_row(Gradient dx, int at, const Real *p, int target, Real factor, int C)
{
    for (int c = 0; c < C; c++) {
        const bool y = c + is("count_from_1") == target;
        if (is("added_twice") || is("subtracts_later")) { /* the latter is right */
            gradient_add(dx, at + c, factor * p[c]);
            if (y && is("added_twice"))
                gradient_add(dx, at + c, -factor);
            else
                dx.data[at + c] -= y * factor;
        } else {
            add(dx, at + c,
                is("without_y")          ? factor * p[c]
                : is("target_alone")     ? factor * y * (p[c] - 1)
                : is("y_without_factor") ? factor * p[c] - y
                                         : factor * (p[c] - y));
        }
    }
}

void cross_entropy_backward(Gradient dx, const Real *x, const int *t, Real g, int N, int C)
{
    for (int r = 0; r < (is("one_row") ? 1 : N + is("loop_end")); r++) {
        const bool all = is("all_rows");
        const Real *row = x + r * C;
        const Real m = is("max_of_all") ? maximum(x, N * C) : maximum(row, C);
        Real sum = 0, p[64];
        for (int c = 0; c < (all ? N * C : C); c++)
            sum += exp((all ? x : row)[c] - m);
        for (int c = 0; c < C; c++)
            p[c] = is("log_without_max") ? exp(row[c] - log(sum)) : exp(row[c] - m) / sum;
        add_row(dx, r * C, p, t[is("first_target") ? 0 : r], factor_of(g, N, C), C);
    }
}
