/* Exercise 8.2. One head of causal attention has computed
 *     s_ij = q_i.k_j / sqrt D      P_ij = e^(s_ij - m_i) / l_i      out_i = sum_j P_ij v_j
 * for all j <= i, in rows i = 0, ..., N - 1. There are q and k [N, D], v and out [N, M], and of
 * each row m[i] and inverse[i] = 1 / l_i, but no s and no P. g = dL/dout is [N, M]; the arrays are
 * row-major, so q_ic is q[i * D + c]. dq, dk and dv hold the contributions of other uses: add those
 * of this head, by +=. Then, in the folder exercises,
 *     cc -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I. attention_backward/[se]*.c grade.c tapegrad.c -lm
 *     ./a.out */
#include "exercise.h"

#include <math.h>

/* x.y, of n elements each */
static inline Real dot(const Real *x, const Real *y, int n)
{
    Real sum = 0;
    for (int c = 0; c < n; c++)
        sum += x[c] * y[c];
    return sum;
}

void attention_backward(Real *dq, Real *dk, Real *dv, const Real *g, const Real *q, const Real *k,
                        const Real *v, const Real *out, const Real *m, const Real *inverse, int N,
                        int D, int M)
{
    /* your lines */
}
