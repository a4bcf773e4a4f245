/* The kernels of this room; the rows of the tables declare those of unary and binary operations. */
#ifndef TAPEGRAD_OPS_ELEMENTWISE_KERNELS_H
#define TAPEGRAD_OPS_ELEMENTWISE_KERNELS_H

#include "ops/elementwise/broadcast_view.h"
#include "ops/elementwise/dropout.h"
#include "tensor/kernel.h"

/* y is x or out, whichever the gradient reads. */
#define UNARY_KERNELS(op)                                                                          \
    OLD_KERNEL(void, op##_forward, Real *out, const Real *x, Real c, Real d, int64_t n);           \
    OLD_KERNEL(void, op##_backward, Real *dx, bool accumulate, const Real *dout, const Real *y,    \
               Real c, Real d, int64_t n);

#define BINARY_KERNEL(op)                                                                          \
    OLD_KERNEL(void, op##_forward, Real *out, const Real *a, Broadcast a_view, const Real *b,      \
               Broadcast b_view, int64_t n);
#define BINARY_GRADIENT_KERNEL(op, side)                                                           \
    OLD_KERNEL(void, op##_backward_##side, Real *dx, bool accumulate, const Real *dout,            \
               const Real *out, const Real *y, Broadcast y_view, int64_t n);

OLD_KERNEL(void, dropout, Real *out, bool accumulate, const Real *x, DropoutDraw d, int64_t n);
DEVICE_FUNCTION(void, cast, Real *out, bool accumulate, const Real *x, bool to_bf16, int64_t n);
OLD_KERNEL(void, broadcast_copy, Real *out, bool accumulate, Real factor, const Real *x,
           Broadcast b, bool real_x);
CUDA_FUNCTION(int64_t, broadcast_sum_scratch, Broadcast b);
OLD_KERNEL(void, broadcast_sum, Real *out, bool accumulate, Real factor, Real *scratch,
           const Real *x, Broadcast b, bool real_out);

#endif
