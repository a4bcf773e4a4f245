/* Answers to exercise 5.1, compiled with -Dright, -Dplus, ...; expected.txt has the grader's
 * sentences. */
#include "exercise.h"

#include <stddef.h>

void softmax_backward(Gradient dx, const Real *g, const Real *p, int R, int C)
{
#ifdef stores
#define add(i, value) dx.data[i] = value
#elif defined adds_always
#define add(i, value) dx.data[i] += value
#else
#define add(i, value) gradient_add(dx, i, value)
#endif
#ifdef loop_end
    C++;
#elif defined one_row
    R = 1;
#elif defined endless
    for (volatile int i = 0; i < 1; i = i) {
    }
#elif defined crash
    *(volatile Real *)NULL = 0;
#endif
#ifdef all_rows
    C *= R;
    R = 1;
#endif
    Real sum = 0;
    for (int r = 0; r < R; r++) {
#ifndef running_sum
        sum = 0;
#endif
        for (int c = r * C; c < (r + 1) * C; c++)
#ifdef plain_sum
            sum += g[c];
#elif defined mean
            sum += p[c] * g[c] / C;
#else
            sum += p[c] * g[c];
#endif
        for (int j = r * C; j < (r + 1) * C; j++)
#ifdef no_sum
            add(j, p[j] * g[j] + 0 * sum);
#elif defined plus
            add(j, p[j] * (g[j] + sum));
#elif defined diagonal
            add(j, p[j] * (1 - p[j]) * g[j] + 0 * sum);
#elif defined outside
                add(j, p[j] * g[j] - sum);
#elif defined no_factor
                add(j, g[j] - sum);
#elif defined negative
                add(j, p[j] * (sum - g[j]));
#elif defined unknown
                add(j, p[j] * (g[j] - sum) + (Real)0.5);
#else
                add(j, p[j] * (g[j] - sum));
#endif
    }
}
