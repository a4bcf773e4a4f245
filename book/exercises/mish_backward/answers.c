/* Answers to exercise 3.2 */
#include "exercise.h"
#include "../answer.h"

#include <math.h>

static double tanh_of_softplus(double x)
{
    const double e = pow(1 + exp(x), 2);
    return is("overflow_below")  ? tanh(x + log1p(exp(-x)))
           : is("overflow_tanh") ? (e - 1) / (e + 1)
                                 : tanh(log(1 + exp(x)));
}

void mish_backward(Gradient dx, const Real *g, const Real *x, int n)
{
    for (int i = 0; i < n + is("loop_end") - is("one_less"); i++) {
        const double s = is("overflow") ? exp(x[i]) / (1 + exp(x[i])) : 1 / (1 + exp(-x[i]));
        const double t = tanh_of_softplus(x[i]), dt = (1 - t * t) * s;
        add(dx, i,
            is("no_upstream")   ? t + x[i] * dt
            : is("first_term")  ? g[i] * t
            : is("second_term") ? g[i] * x[i] * dt
            : is("no_inner")    ? g[i] * (t + x[i] * (1 - t * t))
            : is("not_squared") ? g[i] * (t + x[i] * (1 - t) * s)
            : is("no_factor")   ? g[i] * (t + dt)
            : is("no_brackets") ? g[i] * t + x[i] * dt
            : is("negative")    ? -g[i] * (t + x[i] * dt)
            : is("unknown")     ? g[i] * (t + x[i] * dt) + 0.5
                                : g[i] * (t + x[i] * dt));
    }
}
