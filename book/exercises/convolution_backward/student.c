/* Exercise 4.2. A convolution has computed out_n = sum_k w_k x_(n + k) of x [N] and w [K], for all
 * windows that fit into x: 0 <= n < N - K + 1 and 0 <= k < K. g = dL/dout has N - K + 1 elements.
 * dx and dw hold the contributions of other uses: add those of the convolution, by +=. Then, in
 * the folder exercises,
 *     cc -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I. convolution_backward/[se]*.c grade.c tapegrad.c -lm
 *     ./a.out */
#include "exercise.h"

void convolution_backward(Real *dx, Real *dw, const Real *g, const Real *x, const Real *w, int N,
                          int K)
{
    /* your lines */
}
