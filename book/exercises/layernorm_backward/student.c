/* Exercise 6.1. Layer norm of R rows of C elements has computed n = (x - mean) r, with one r per
 * row, and h = dL/dn. Contribute dL/dx to dx: gradient_add(dx, i, value) adds value to element i.
 * Then, in the folder exercises,
 *     cc -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I. layernorm_backward/[se]*.c grade.c tapegrad.c -lm
 *     ./a.out */
#include "exercise.h"

void layernorm_backward(Gradient dx, const Real *h, const Real *n, const Real *r, int R, int C)
{
    /* your lines */
}
