/* The backward pass: the chain rule, node by node in reverse order. A node's backward function
 * reads dL/doutput and contributes to dL/dinput of each input; the contributions of all nodes that
 * use a tensor add up to its gradient, since dL/dx = sum over its uses of dL/dout dout/dx. When the
 * pass reaches a node, every later node has contributed, so the gradients of its outputs are
 * complete; when the node is done, they are freed. */
#include "autograd/internal.h"

#include <math.h>
#include <string.h>

const Real *tape_upstream(const Node *node, int index)
{
    if (index < 0 || index >= NODE_OUTPUTS)
        tape_error(node->tape, "tape_upstream: index %d of %d outputs", index, NODE_OUTPUTS);
    const Tensor *output = node->outputs[index];
    return output && output->has_gradient ? output->gradient->data : NULL;
}

/* scattered: the backward function does not write each element of the root once. */
static Gradient contribution(Node *node, Tensor *input, bool scattered)
{
    if (!tensor_requires_grad(input))
        return (Gradient){ NULL, false };
    Tensor *root = tensor_root(input), *gradient = root->gradient;
    if (!gradient->data)
        tape_allocate_storage(node->tape, gradient);
    const bool accumulate = root->has_gradient;
    if (scattered && !accumulate)
        device_zero(root->device, gradient->data, tensor_bytes(root));
    else if (node->tape->fills_gradients && !accumulate)
        tensor_fill(gradient, (Real)NAN);
    root->has_gradient = true;
    return (Gradient){ tensor_gradient(input)->data, accumulate || scattered };
}

/* The root is larger only where input is a part of joined weights (params_add_joined). */
Gradient tape_contribution(Node *node, Tensor *input)
{
    return contribution(node, input,
                        input && tensor_count(input) < tensor_count(tensor_root(input)));
}

Gradient tape_scattered_contribution(Node *node, Tensor *input)
{
    return contribution(node, input, true);
}

/* The nodes that use a node's outputs were recorded later, so their backward functions ran before:
 * when this node's has run too, nothing reads the outputs, their gradients or what it saved. */
static void release_outputs(Node *node)
{
    for (int i = 0; i < NODE_OUTPUTS; i++) {
        Tensor *output = node->outputs[i];
        if (output && !output->keep)
            tape_free_tensor(output);
    }
    for (int i = 0; i < NODE_SAVED; i++)
        if (node->saved[i])
            tape_free_storage(node->saved[i]);
}

void tape_visit(Tape *tape, const Node *stop)
{
    for (Node *node = tape->last_node; node != stop; node = node->previous) {
        bool reached = node->collective;
        for (int i = 0; i < NODE_OUTPUTS; i++)
            reached |= tape_upstream(node, i) != NULL;
        error_enter(&tape->errors, node->name);
        tape_notify(tape, TAPE_BACKWARD, NULL, node);
        if (reached) /* never a view, whose root has the gradient */
            node->backward(node);
        if (reached && tape->checks_finite)
            tape_check_backward_finite(tape, node);
        tape_notify(tape, TAPE_FREES, NULL, node);
        release_outputs(node);
    }
}

static void backward_pass(Tape *tape, Tensor *out)
{
    const bool claimed = error_claim(&tape->errors, error_operation());
    tape->backward_started = true;
    tensor_keep(out);
    tape_visit(tape, NULL);
    error_release(&tape->errors, claimed);
}

/* Raises unless a backward pass can start at out. */
static void check_start(Tape *tape, const char *label, Tensor *out)
{
    tape_check(tape, label);
    if (tape->backward_started)
        tape_error(tape,
                   "%.*s: the backward pass of this tape has run already and released its tensors; "
                   "call tape_reset between passes",
                   (int)strcspn(label, ":"), label);
    tape_check_tensor(tape, label, out, TENSOR_REAL);
    if (!tensor_requires_grad(out))
        tape_error(tape,
                   "%s depends on nothing that requires a gradient (or the tape was not recording)",
                   label);
    if (!tensor_root(out)->tape)
        tape_error(tape, "%s is a parameter, expected the result of an operation",
                   tensor_label(label, out).text);
}

void tape_backward(Tape *tape, Tensor *loss)
{
    check_start(tape, "tape_backward: the loss", loss);
    if (tensor_count(loss) != 1)
        tape_error(tape, "tape_backward: the loss has shape %s, expected one element",
                   shape_text(loss->shape).text);
    Tensor *root = tensor_root(loss);
    if (!root->gradient->data)
        tape_allocate_storage(tape, root->gradient);
    tensor_fill(root->gradient, 1);
    root->has_gradient = true;
    backward_pass(tape, loss);
}

void tape_backward_from(Tape *tape, Tensor *out, Tensor *gradient)
{
    check_start(tape, "tape_backward_from: out", out);
    tape_check_tensor(tape, "tape_backward_from: the gradient", gradient, TENSOR_REAL);
    if (!shape_equal(out->shape, gradient->shape))
        tape_error(tape, "tape_backward_from: out has shape %s, the gradient %s, expected the same",
                   shape_text(out->shape).text, shape_text(gradient->shape).text);
    if (out->type != gradient->type)
        tape_error(tape, "tape_backward_from: out and the gradient are of different types");
    /* No node contributes to it, so no copy; the root's gradient owns no storage to free. */
    Tensor *root = tensor_root(out);
    root->gradient->data = tensor_keep(gradient)->data;
    root->has_gradient = true;
    backward_pass(tape, out);
}

void tape_clear_gradients(Tape *tape)
{
    for (Node *node = tape->last_node; node; node = node->previous)
        for (int i = 0; i < node_input_count(node); i++)
            if (tensor_requires_grad(node_input(node, i)))
                tensor_root(node_input(node, i))->has_gradient = false;
}
