/* Included by every operation: contributions to gradients, casts. */
#ifndef TAPEGRAD_OPS_SHARED_INTERNAL_H
#define TAPEGRAD_OPS_SHARED_INTERNAL_H

#include <math.h>
#include <string.h>

#include "ops/ops.h"
#include "ops/shared/math.h"
#include "tensor/extend.h"

#pragma GCC visibility push(default)

/* If one tensor is bf16 and the other Real, casts the Real one to bf16. */
void op_cast_alike(Tape *tape, Tensor **a, Tensor **b);

/* to [n] <- from [n], of which one is bf16 and the other Real. */
void op_convert(Device *device, Gradient to, const Real *from, bool to_bf16, int64_t n);

#pragma GCC visibility pop

/* A new int32 tensor of the tape, recorded to have elements in [0, max]. */
static inline Tensor *bounded_integers(Tape *tape, Shape shape, int32_t max)
{
    Tensor *out = tape_tensor_i32(tape, shape);
    out->bounds = (IntegerBounds){ .known = true, .max = max };
    return out;
}

/* In a backward function: scratch memory, shaped like x, that is freed with the node: in the last
 * places of saved, as long as there are free ones. */
static inline Tensor *scratch_of_node(Node *node, const Tensor *x)
{
    int place = NODE_SAVED - 1;
    while (place >= 0 && node->saved[place])
        place--;
    if (place < 0)
        tape_error(node->tape, "%s: it saves more than %d tensors", node->name, NODE_SAVED);
    return node->saved[place] = tape_tensor_of(node->tape, x->type, x->shape);
}

/* dL/dout of the node's first output, or zeros if the loss depends on later ones alone. */
static inline const Real *upstream_or_zeros(Node *node)
{
    const Real *dout = tape_upstream(node, 0);
    Tensor *zeros = dout ? NULL : scratch_of_node(node, node->outputs[0]);
    if (zeros)
        tensor_fill(zeros, 0);
    return zeros ? zeros->data : dout;
}

/* The gradient of the elements from `first` on. */
static inline Gradient gradient_from(Gradient dx, int64_t first)
{
    return (Gradient){ dx.data + first, dx.accumulate };
}

#endif
