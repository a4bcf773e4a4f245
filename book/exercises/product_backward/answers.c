/* Answers to exercise 1.2, compiled with -Dright, -Dreplaces, ...; expected.txt has the grader's
 * sentences. */
#include "exercise.h"

#ifdef replaces
#define add(to, i, value) (to).data[i] = value
#else
#define add(to, i, value) gradient_add(to, i, value)
#endif
#ifdef own_factor
#define DA g[i] * a->data[i]
#define DB g[i] * b->data[i]
#elif defined no_upstream
#define DA b->data[i] + 0 * g[i]
#define DB a->data[i]
#elif defined of_a_sum
#define DA g[i]
#define DB g[i]
#elif defined minus
#define DA -g[i] * b->data[i]
#define DB g[i] * a->data[i]
#else
#define DA g[i] * b->data[i]
#define DB g[i] * a->data[i]
#endif

void product_backward(Node *node)
{
    Tensor *a = node->inputs[0], *b = node->inputs[1];
    const Real *g = tape_upstream(node, 0);
    Gradient da = tape_contribution(node, a);
    for (int64_t i = 0; i < tensor_count(a); i++)
        add(da, i, DA);
#ifdef only_a
    return;
#endif
#ifdef one_factor
    if (a == b)
        return;
#endif
    Gradient db = tape_contribution(node, b);
    for (int64_t i = 0; i < tensor_count(a); i++)
        add(db, i, DB);
}
