/* Answers to exercise 3.2, compiled with -Dright, -Dno_inner, ...; expected.txt has the grader's
 * sentences. */
#include "exercise.h"

#include <math.h>

#ifdef stores
#define add(i, value) dx.data[i] = value
#elif defined adds_always
#define add(i, value) dx.data[i] += value
#else
#define add(i, value) gradient_add(dx, i, value)
#endif

void mish_backward(Gradient dx, const Real *g, const Real *x, int n)
{
#ifdef loop_end
    n++;
#elif defined one_less
    n--;
#endif
    for (int i = 0; i < n; i++) {
#ifdef overflow
        const double s = exp(x[i]) / (1 + exp(x[i]));
#else
        const double s = 1 / (1 + exp(-x[i]));
#endif
#ifdef overflow_below
        const double t = tanh(x[i] + log1p(exp(-x[i])));
#elif defined overflow_tanh
        const double e = exp(2 * log(1 + exp(x[i]))), t = (e - 1) / (e + 1);
#else
        const double t = tanh(log(1 + exp(x[i])));
#endif
#ifdef no_upstream
        add(i, t + x[i] * (1 - t * t) * s);
#elif defined first_term
        add(i, g[i] * t);
#elif defined second_term
        add(i, g[i] * x[i] * (1 - t * t) * s);
#elif defined no_inner
        add(i, g[i] * (t + x[i] * (1 - t * t)));
#elif defined not_squared
        add(i, g[i] * (t + x[i] * (1 - t) * s));
#elif defined no_factor
        add(i, g[i] * (t + (1 - t * t) * s));
#elif defined no_brackets
        add(i, g[i] * t + x[i] * (1 - t * t) * s);
#elif defined negative
        add(i, -g[i] * (t + x[i] * (1 - t * t) * s));
#elif defined unknown
        add(i, g[i] * (t + x[i] * (1 - t * t) * s) + 0.5);
#else
        add(i, g[i] * (t + x[i] * (1 - t * t) * s));
#endif
    }
}
