/* The kernels of this room; unary and binary operations declare theirs for each row of the tables. */
#ifndef TAPEGRAD_OPS_ELEMENTWISE_KERNELS_H
#define TAPEGRAD_OPS_ELEMENTWISE_KERNELS_H

#include "ops/elementwise/dropout.h"
#include "tensor/kernel.h"

#define UNARY_KERNELS(op)                                                                          \
    KERNEL(void, op##_forward, Real *out, const Real *x, int64_t n);                               \
    KERNEL(void, op##_backward, Real *dx, bool accumulate, const Real *dout, const Real *y,        \
           int64_t n);
#define UNARY_CONSTANT_KERNELS(op)                                                                 \
    KERNEL(void, op##_forward, Real *out, const Real *x, Real c, int64_t n);                       \
    KERNEL(void, op##_backward, Real *dx, bool accumulate, const Real *dout, Real c, int64_t n);
#define BINARY_KERNEL(op)                                                                          \
    KERNEL(void, op##_forward, Real *out, const Real *a, int64_t na, const Real *b, int64_t nb,    \
           int64_t n);
#define BINARY_GRADIENT_KERNEL(op, side)                                                           \
    KERNEL(void, op##_backward_##side, Real *dx, bool accumulate, const Real *dout,                \
           const Real *out, const Real *y, int64_t m, int64_t n);

KERNEL(void, dropout, Real *out, bool accumulate, const Real *x, DropoutDraw d, int64_t n);
CUDA_FUNCTION(void, cast, Real *out, bool accumulate, const Real *x, bool to_bf16, int64_t n);
CUDA_FUNCTION(int64_t, sum_repeats_scratch, int64_t rows, int64_t columns);
KERNEL(void, sum_repeats, Real *out, bool accumulate, Real factor, Real *scratch, const Real *x,
       int64_t rows, int64_t columns);

#endif
