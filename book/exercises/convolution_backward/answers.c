/* Answers to exercise 4.2 */
#include "exercise.h"
#include "../answer.h"

/* Each element of dx at once; "edges" has those that have K terms, "as_forward" runs as the forward
 * pass, and "by_element" is right. */
static void dx_by_element(Real *dx, const Real *g, const Real *w, int N, int K)
{
    const int M = N - K + 1;
    for (int m = is("edges") ? K - 1 : 0; m < (is("by_element") ? N : M); m++)
        for (int k = 0; k < K; k++) {
            const int n = is("as_forward") ? m + k : m - k;
            dx[m] += n >= 0 && n < M ? g[n] * w[k] : 0;
        }
}

void convolution_backward(Real *dx, Real *dw, const Real *g, const Real *x, const Real *w, int N,
                          int K)
{
    const int M = is("to_N") || is("outside") ? N : N - K + 1;
    const bool by_element = is("edges") || is("as_forward") || is("by_element");
    for (int i = 0; i < N && is("replaces"); i++)
        dx[i] = dw[i % K] = 0;
    if (by_element)
        dx_by_element(dx, g, w, N, K);
    for (int n = 0; n < M; n++)
        for (int k = 0; k < K && (n + k < N || is("outside")); k++) {
            const Real up = is("no_upstream") ? 1 : is("negative") ? -g[n] : g[n];
            const Real of_x = is("reversed") || is("both_reversed") ? w[K - 1 - k]
                              : is("own_operand")                   ? x[n + k]
                                                                    : w[k];
            const Real of_w = is("both_reversed") ? x[n + K - 1 - k]
                              : is("x_n")         ? x[n]
                              : is("x_k")         ? x[k]
                              : is("own_operand") ? w[k]
                              : is("double_dw")   ? 2 * x[n + k]
                                                  : x[n + k];
            Real *to_x = &dx[is("no_k") ? n : n + k];
            if (!by_element)
                *to_x = (is("stores") || is("stores_both") ? 0 : *to_x) + up * of_x;
            if (!is("only_dx"))
                dw[k] = (is("stores_both") ? 0 : dw[k]) + up * of_w;
        }
}
