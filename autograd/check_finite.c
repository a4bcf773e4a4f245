/* The search for NaN and infinity: tape_check_finite. */
#include "autograd/internal.h"

/* Raises if an element of values is not finite: the index-th input or output of the node, or its
 * gradient. */
static void check_finite(Tape *tape, const Node *node, const char *what, int index,
                         const Tensor *tensor, const Tensor *values, bool minus_infinity)
{
    Real value;
    if (!tensor || values->type == TENSOR_INT32 || !tensor_root(values)->data)
        return;
    const int64_t at = tensor_find_not_finite(values, minus_infinity, &value);
    if (at >= 0)
        tape_error(tape, "%s: %s %d %s, and its element %lld is %g", node->name, what, index,
                   tensor_text(tensor).text, (long long)at, (double)value);
}

void tape_check_forward_finite(Tape *tape, const Node *node)
{
    for (int i = 0; i < node_input_count(node); i++)
        check_finite(tape, node, "input", i, node_input(node, i), node_input(node, i),
                     i < NODE_INPUTS && (node->minus_infinity >> i & 1));
    for (int i = 0; i < NODE_OUTPUTS; i++)
        check_finite(tape, node, "output", i, node->outputs[i], node->outputs[i], false);
}

void tape_check_backward_finite(Tape *tape, const Node *node)
{
    for (int i = 0; i < node_input_count(node); i++) {
        Tensor *input = node_input(node, i);
        if (tensor_requires_grad(input) && tensor_root(input)->has_gradient)
            check_finite(tape, node, "the gradient of input", i, input, tensor_gradient(input),
                         false);
    }
}
