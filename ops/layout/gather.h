#ifndef TAPEGRAD_OPS_LAYOUT_GATHER_H
#define TAPEGRAD_OPS_LAYOUT_GATHER_H

#include "ops/layout/layout.h"

/* out[o, k, i] <- x[o, index[o, k, i], i], k < K, x viewed as [outer, size, inner]. */
void gather(const Tensor *x, Real *out, const int32_t *index, AxisView v, int64_t K);

/* Its gradient: dx[o, c, i] <- sum over the k with index[o, k, i] = c of dout[o, k, i]. */
void gather_contribute(const Tensor *x, Gradient dx, const Real *dout, const int32_t *index,
                       AxisView v, int64_t K);

#endif
