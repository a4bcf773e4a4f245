/* Broadcasting on the CPU. */
#ifndef TAPEGRAD_OPS_ELEMENTWISE_BROADCAST_H
#define TAPEGRAD_OPS_ELEMENTWISE_BROADCAST_H

#include "ops/elementwise/broadcast_view.h"
#include "ops/shared/internal.h"

/* The shape of a op b: aligned at the last axis, sizes are equal, or one of them is 1 or missing.
 * Raises otherwise. */
Shape broadcast_shape(Tape *tape, const char *operation, const Tensor *a, const Tensor *b);

/* The view of x's repetition to the shape out, which x fits. */
Broadcast broadcast_of(Shape x, Shape out);

/* Elements first, ..., first + count - 1 of x, broadcast: in place if x has them one after the
 * other, else written to buffer. */
const Real *broadcast_block(Real *buffer, const Real *x, Broadcast b, int64_t first, int64_t count);

#endif
