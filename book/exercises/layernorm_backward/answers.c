/* Answers to exercise 6.1, compiled with -Dright, -Dplus, ...; expected.txt has the grader's
 * sentences. */
#include "exercise.h"

#ifdef sums
#define COUNT 1
#elif defined unbiased
#define COUNT (C - 1)
#elif defined all_rows
#define COUNT (R * C)
#else
#define COUNT C
#endif

void layernorm_backward(Gradient dx, const Real *h, const Real *n, const Real *r, int R, int C)
{
    Real sum_h = 0, sum_hn = 0;
#ifdef all_rows
    for (int i = 0; i < R * C; i++) {
        sum_h += h[i];
        sum_hn += h[i] * n[i];
    }
#endif
    for (int row = 0; row < R; row++) {
#if !defined kept && !defined all_rows
        sum_h = sum_hn = 0;
#endif
#ifndef all_rows
        for (int i = row * C; i < (row + 1) * C; i++) {
            sum_h += h[i];
            sum_hn += h[i] * n[i];
        }
#endif
        const Real h_bar = sum_h / COUNT, hn_bar = sum_hn / COUNT;
        for (int i = row * C; i < (row + 1) * C; i++)
#ifdef both_constant
            gradient_add(dx, i, r[row] * h[i]);
#elif defined integer_division
            gradient_add(dx, i, r[row] * (h[i] - 1 / C * sum_h - n[i] * (1 / C) * sum_hn));
#elif defined mean_constant
            gradient_add(dx, i, r[row] * (h[i] - n[i] * hn_bar));
#elif defined variance_constant
            gradient_add(dx, i, r[row] * (h[i] - h_bar));
#elif defined unbiased_variance
            gradient_add(dx, i, r[row] * (h[i] - h_bar - n[i] * sum_hn / (C - 1)));
#elif defined without_r
            gradient_add(dx, i, h[i] - h_bar - n[i] * hn_bar);
#elif defined mean_of_h
            gradient_add(dx, i, r[row] * (h[i] - h_bar - n[i] * h_bar));
#elif defined without_n
            gradient_add(dx, i, r[row] * (h[i] - h_bar - hn_bar));
#elif defined plus
            gradient_add(dx, i, r[row] * (h[i] - h_bar + n[i] * hn_bar));
#elif defined negative
            gradient_add(dx, i, r[row] * (h_bar + n[i] * hn_bar - h[i]));
#elif defined first_r
            gradient_add(dx, i, *r * (h[i] - h_bar - n[i] * hn_bar));
#elif defined stores
            dx.data[i] = r[row] * (h[i] - h_bar - n[i] * hn_bar);
#elif defined one_after_the_other /* one after the other: the same */
        {
            const Real rest = h[i] - h_bar;
            Real along = 0;
            for (int c = row * C; c < (row + 1) * C; c++)
                along += (h[c] - h_bar) * n[c] / C;
            gradient_add(dx, i, r[row] * (rest - along * n[i]));
        }
#else
            gradient_add(dx, i, r[row] * (h[i] - h_bar - n[i] * hn_bar));
#endif
    }
}
