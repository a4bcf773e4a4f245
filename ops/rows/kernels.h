/* The kernels of this room. */
#ifndef TAPEGRAD_OPS_ROWS_KERNELS_H
#define TAPEGRAD_OPS_ROWS_KERNELS_H

#include "ops/elementwise/dropout.h"
#include "ops/shared/axis.h"
#include "ops/shared/math.h"
#include "tensor/kernel.h"

/* Of one row, saved for the backward pass: the mean, and r = 1 / sqrt(variance + eps). */
typedef struct Statistics {
    Real mean, r;
} Statistics;

/* r; NaN where the variance overflows: 1 / infinity = 0 would normalize such a row to the bias. */
MATH_FUNCTION Real inverse_deviation(Real variance, Real eps)
{
    return variance < (Real)INFINITY ? 1 / real_sqrt(variance + eps) : (Real)NAN;
}

OLD_KERNEL(void, layernorm_forward, Real *out, Statistics *statistics, const Real *x,
           const Real *weight, const Real *bias, Real eps, int64_t R, int64_t C);
OLD_KERNEL(void, layernorm_backward, Real *dx, bool accumulate, Real *dweight, Real *dbias,
           int64_t parts, const Real *dout, const Real *x, const Real *weight,
           const Statistics *statistics, int64_t R, int64_t C);
DEVICE_FUNCTION(int64_t, layernorm_parts, int64_t R);

OLD_KERNEL(void, residual_layernorm_forward, Real *out, Statistics *statistics, const Real *x,
           const Real *branch, DropoutDraw d, const Real *weight, const Real *bias, Real eps,
           Real *scratch, int64_t R, int64_t C);
OLD_KERNEL(void, residual_layernorm_backward, Gradient dx, Gradient dbranch, Real *dweight,
           Real *dbias, int64_t parts, Real *scratch, const Real *dout, const Real *x,
           const Real *branch, DropoutDraw d, const Real *weight, const Statistics *statistics,
           int64_t R, int64_t C);

OLD_KERNEL(void, argmax, int32_t *index, const Real *x, AxisView v);

OLD_KERNEL(void, cumulative_sum, Real *out, bool accumulate, const Real *x, bool reverse,
           AxisView v);

#endif
