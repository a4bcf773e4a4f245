/* Exercise 4.1. A layer has computed y_ro = sum_i x_ri w_oi + b_o: x is [R, I], w [O, I], b [O],
 * and g = dL/dy is [R, O]; the arrays are row-major, so w_oi is w[o * I + i]. dx, dw and db hold
 * the contributions of other uses: add those of this layer, by +=. Then, in the folder exercises,
 *     cc -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I. linear_backward/[se]*.c grade.c tapegrad.c -lm
 *     ./a.out */
#include "exercise.h"

void linear_backward(Real *dx, Real *dw, Real *db, const Real *g, const Real *x, const Real *w,
                     int R, int I, int O)
{
    /* your lines */
}
