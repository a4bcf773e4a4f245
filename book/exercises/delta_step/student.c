/* Exercise 10.1. One position of the delta rule: S holds the state before the position, D rows of M
 * elements, row-major. Change it to
 *     S + k u^T      u = beta (v - S^T k)
 * and store the changed S^T q in out. k and q have D elements, v and out M, at most MAX_M. k may
 * have any length. Then, in the folder exercises,
 *     cc -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I. delta_step/[se]*.c grade.c tapegrad.c -lm
 *     ./a.out */
#include "exercise.h"

void delta_step(Real *out, Real *S, const Real *k, const Real *v, const Real *q, Real beta, int D,
                int M)
{
    /* your lines */
}
