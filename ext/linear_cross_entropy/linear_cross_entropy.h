/* The cross-entropy of a linear layer's outputs, which are not stored. */
#ifndef TAPEGRAD_LINEAR_CROSS_ENTROPY_H
#define TAPEGRAD_LINEAR_CROSS_ENTROPY_H

#include "ops/ops.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* out = op_cross_entropy(tape, op_linear(tape, x, weight, bias), targets, weights), computed by
 * blocks of 512 rows: neither all logits nor their gradient are in memory. x [..., D], weight
 * [V, D], bias [V] or NULL; targets int32 [...], in [0, V); weights [...], 0 or more, or NULL for
 * all 1: of rows, as in op_cross_entropy. A row of weight 0 is ignored, but its x must be finite,
 * as in op_linear. Returns a scalar of dtype Real, in nats; x, weight and bias get gradients.
 *
 * The call computes the gradients, too: a node of more than 512 rows holds them, in Real, to the
 * end of its backward pass, (V + rows) D elements; else it holds the logits. Turn recording off to
 * evaluate. tape_recompute holds neither, and computes the logits twice. */
Tensor *op_linear_cross_entropy(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias,
                                Tensor *targets, Tensor *weights);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
