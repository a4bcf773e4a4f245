/* Exercise 3.1. out_rc = x_rc + b_c, for R rows and C columns, and g = dL/dout, row by row: g_rc is
 * g[r * C + c]. Contribute dL/db to db, which has C elements: gradient_add(db, c, value) adds value
 * to element c. Then, in the folder exercises,
 *     cc -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I. bias_backward/[se]*.c grade.c tapegrad.c -lm
 *     ./a.out */
#include "exercise.h"

void bias_backward(Gradient db, const Real *g, int R, int C)
{
    /* your lines */
}
