/* The kernels of this room. */
#ifndef TAPEGRAD_OPS_LOSSES_KERNELS_H
#define TAPEGRAD_OPS_LOSSES_KERNELS_H

#include "ops/shared/math.h"
#include "tensor/kernel.h"

OLD_KERNEL(void, cross_entropy_forward, Real *out, LogSumExp *saved, Real *weight_sum, Real *loss,
           const Real *logits, const int32_t *targets, const Real *weights, int64_t R, int64_t C);
OLD_KERNEL(void, cross_entropy_backward, Real *dlogits, bool accumulate, const Real *dout,
           const LogSumExp *saved, const Real *weight_sum, const Real *logits,
           const int32_t *targets, const Real *weights, int64_t R, int64_t C);

OLD_KERNEL(void, mean_squared_error_forward, Real *out, Real *partial, const Real *prediction,
           const Real *target, int64_t pieces, int64_t n);
OLD_KERNEL(void, mean_squared_error_backward, Real *dp, bool accumulate, Real sign,
           const Real *dout, const Real *prediction, const Real *target, int64_t n);

OLD_KERNEL(void, logistic_mixture_forward, Real *out, Real *saved, Real *loss,
           const Real *parameters, const int32_t *targets, int64_t R, int64_t K);
OLD_KERNEL(void, logistic_mixture_backward, Real *dparameters, bool accumulate, const Real *dout,
           const Real *saved, const Real *parameters, const int32_t *targets, int64_t R, int64_t K);

#endif
