/* Exercise 6.2. x has R rows of C elements, y has C elements. For each row of x,
 *     out = x.y / (|x| |y|)
 * was computed, where x.y is the sum of x_c y_c and |x| the root of x.x. g [R] is dL/dout, one
 * number per row; y is a constant. Contribute dL/dx to dx: gradient_add(dx, i, value) adds value to
 * element i. Then, in the folder exercises,
 *     cc -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I. cosine_backward/[se]*.c grade.c tapegrad.c -lm
 *     ./a.out */
#include "exercise.h"

#include <math.h>

void cosine_backward(Gradient dx, const Real *g, const Real *x, const Real *y, int R, int C)
{
    /* your lines */
}
