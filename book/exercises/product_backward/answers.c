/* Answers to exercise 1.2 */
#include "exercise.h"
#include "../answer.h"

/* One input's gradient, from the other input */
static void contribute(Node *node, Tensor *own, Tensor *other, Real sign)
{
    const Real *g = tape_upstream(node, 0);
    Gradient d = tape_contribution(node, own);
    for (int i = 0; i < (int)tensor_count(own); i++)
        add(d, i,
            is("own_factor")    ? g[i] * own->data[i]
            : is("no_upstream") ? other->data[i]
            : is("of_a_sum")    ? g[i]
                                : sign * g[i] * other->data[i]);
}

void product_backward(Node *node)
{
    Tensor *a = node->inputs[0], *b = node->inputs[1];
    contribute(node, a, b, is("minus") ? -1 : 1);
    if (!is("only_a") && !(is("one_factor") && a == b))
        contribute(node, b, a, 1);
}
