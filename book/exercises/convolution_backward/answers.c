/* Answers to exercise 4.2, compiled with -Dright, -Dreversed, ...; expected.txt has the grader's
 * sentences. */
#include "exercise.h"

#if defined stores || defined stores_both
#define ADD =
#else
#define ADD +=
#endif
#ifdef stores_both
#define ADD_W =
#else
#define ADD_W +=
#endif

#ifdef no_k
#define DX_AT n
#else
#define DX_AT n + k
#endif
#if defined reversed || defined both_reversed
#define DX g[n] * w[K - 1 - k]
#elif defined own_operand
#define DX g[n] * x[n + k]
#elif defined no_upstream
#define DX w[k]
#elif defined negative
#define DX -g[n] * w[k]
#else
#define DX g[n] * w[k]
#endif

#ifdef both_reversed
#define DW g[n] * x[n + K - 1 - k]
#elif defined x_n
#define DW g[n] * x[n]
#elif defined x_k
#define DW g[n] * x[k]
#elif defined own_operand
#define DW g[n] * w[k]
#elif defined no_upstream
#define DW x[n + k]
#elif defined negative
#define DW -g[n] * x[n + k]
#elif defined double_dw
#define DW 2 * g[n] * x[n + k]
#else
#define DW g[n] * x[n + k]
#endif

void convolution_backward(Real *dx, Real *dw, const Real *g, const Real *x, const Real *w, int N,
                          int K)
{
    const int M = N - K + 1;
#ifdef edges /* of dx, each element's sum is computed at once, where it has K terms */
    for (int m = K - 1; m < M; m++)
        for (int k = 0; k < K; k++)
            dx[m] += g[m - k] * w[k];
#elif defined as_forward
    for (int m = 0; m < M; m++)
        for (int k = 0; k < K && m + k < M; k++)
            dx[m] += g[m + k] * w[k];
#elif defined to_N
    for (int n = 0; n < N; n++)
        for (int k = 0; k < K && n + k < N; k++)
            dx[n + k] += g[n] * w[k];
#elif defined outside
    for (int n = 0; n < N; n++)
        for (int k = 0; k < K; k++)
            dx[n + k] += g[n] * w[k];
#elif defined by_element /* right, in another order */
    for (int m = 0; m < N; m++)
        for (int k = 0; k < K; k++)
            if (m - k >= 0 && m - k < M)
                dx[m] += g[m - k] * w[k];
#else
    for (int n = 0; n < M; n++)
        for (int k = 0; k < K; k++)
            dx[DX_AT] ADD DX;
#endif
#ifdef to_N
    for (int n = 0; n < N; n++)
        for (int k = 0; k < K && n + k < N; k++)
            dw[k] += g[n] * x[n + k];
#elif !defined only_dx
    for (int n = 0; n < M; n++)
        for (int k = 0; k < K; k++)
            dw[k] ADD_W DW;
#endif
}
