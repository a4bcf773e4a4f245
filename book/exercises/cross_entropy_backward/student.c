/* Exercise 5.2. x are logits, N rows of C elements, and t[r] is the right class of row r, counted
 * from 0. L_r = -ln p_t of row r, where p = softmax(x_r). The loss is the mean of the L_r, and g is
 * the upstream gradient of that mean. Contribute to dx: gradient_add(dx, i, value) adds value to
 * element i. Compute p from x, for logits near 1000, too. Then, in the folder exercises,
 *     cc -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I. cross_entropy_backward/[se]*.c grade.c \
 *        tapegrad.c -lm
 *     ./a.out */
#include "exercise.h"

#include <math.h>

void cross_entropy_backward(Gradient dx, const Real *x, const int *t, Real g, int N, int C)
{
    /* your lines */
}
