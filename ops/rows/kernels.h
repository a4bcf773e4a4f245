/* The kernels of this room. */
#ifndef TAPEGRAD_OPS_ROWS_KERNELS_H
#define TAPEGRAD_OPS_ROWS_KERNELS_H

#include "ops/layout/kernels.h"
#include "tensor/kernel.h"

OLD_KERNEL(void, argmax, int32_t *index, const Real *x, AxisView v);

OLD_KERNEL(void, cumulative_sum, Real *out, bool accumulate, const Real *x, bool reverse,
           AxisView v);

#endif
