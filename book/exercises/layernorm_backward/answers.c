/* Answers to exercise 6.1 */
#include "exercise.h"
#include "../answer.h"

/* The right dx by another formula: one projection after the other */
static Real projected(const Real *h, const Real *n, Real r, Real h_bar, int i, int C)
{
    Real along = 0;
    for (int c = 0; c < C; c++)
        along += (h[c] - h_bar) * n[c] / C;
    return r * (h[i] - h_bar - along * n[i]);
}

void layernorm_backward(Gradient dx, const Real *h, const Real *n, const Real *r, int R, int C)
{
    const bool all = is("all_rows");
    const int count = is("sums") ? 1 : is("unbiased") ? C - 1 : all ? R * C : C;
    for (int row = 0; row < R; row++) {
        Real sum_h = 0, sum_hn = 0;
        const int begin = row * C, end = begin + C, first = is("kept") || all ? 0 : begin;
        for (int i = first; i < (all ? R * C : end); i++) {
            sum_h += h[i];
            sum_hn += h[i] * n[i];
        }
        const Real h_bar = sum_h / count, hn_bar = sum_hn / count, r_1 = r[is("first_r") ? 0 : row];
        for (int i = begin; i < end; i++)
            add(dx, i,
                is("both_constant")       ? r_1 * h[i]
                : is("integer_division")  ? r_1 * (h[i] - 1 / C * sum_h - n[i] * (1 / C) * sum_hn)
                : is("mean_constant")     ? r_1 * (h[i] - n[i] * hn_bar)
                : is("variance_constant") ? r_1 * (h[i] - h_bar)
                : is("unbiased_variance") ? r_1 * (h[i] - h_bar - n[i] * sum_hn / (C - 1))
                : is("without_r")         ? h[i] - h_bar - n[i] * hn_bar
                : is("mean_of_h")         ? r_1 * (h[i] - h_bar - n[i] * h_bar)
                : is("without_n")         ? r_1 * (h[i] - h_bar - hn_bar)
                : is("plus")              ? r_1 * (h[i] - h_bar + n[i] * hn_bar)
                : is("negative")          ? r_1 * (h_bar + n[i] * hn_bar - h[i])
                : is("one_after_the_other")
                    ? projected(h + begin, n + begin, r_1, h_bar, i - begin, C)
                    : r_1 * (h[i] - h_bar - n[i] * hn_bar));
    }
}
