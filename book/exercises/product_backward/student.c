/* Exercise 1.2. The operation product(a, b) has computed out_i = a_i b_i. Complete its backward
 * function, as square_backward in this chapter: tape_contribution returns where an input's
 * gradient goes, and gradient_add adds a value to one element of it. Both inputs may be the same
 * tensor. Then, in the folder exercises,
 *     cc -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I. product_backward/[se]*.c grade.c tapegrad.c -lm
 *     ./a.out */
#include "exercise.h"

void product_backward(Node *node)
{
    Tensor *a = node->inputs[0], *b = node->inputs[1];
    const Real *g = tape_upstream(node, 0); /* dL/dout */
    /* your lines */
}
