/* Exercise 5.1. p = softmax(x) of R rows of C elements, and g = dL/dp. Contribute dL/dx to dx:
 * gradient_add(dx, i, value) adds value to element i. Then, in the folder exercises,
 *     cc -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I. softmax_backward/[se]*.c grade.c tapegrad.c -lm
 *     ./a.out */
#include "exercise.h"

void softmax_backward(Gradient dx, const Real *g, const Real *p, int R, int C)
{
    /* your lines */
}
