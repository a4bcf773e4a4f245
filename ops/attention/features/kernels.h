/* The kernels of feature maps that are operations of their own. */
#ifndef TAPEGRAD_OPS_ATTENTION_FEATURES_KERNELS_H
#define TAPEGRAD_OPS_ATTENTION_FEATURES_KERNELS_H

#include "tensor/kernel.h"

OLD_KERNEL(void, polynomial_features_forward, Real *out, const Real *x, int64_t R, int64_t F,
           int64_t D);
OLD_KERNEL(void, polynomial_features_backward, Real *dx, bool accumulate, Real *sums,
           const Real *dout, const Real *x, int64_t R, int64_t F, int64_t D);

OLD_KERNEL(void, random_features_forward, Real *out, const Real *y, const Real *x, int64_t R,
           int64_t F, int64_t D);
OLD_KERNEL(void, random_features_backward, Real *h, Real *dx, bool accumulate, const Real *dout,
           const Real *out, const Real *x, int64_t R, int64_t F, int64_t D);

#endif
