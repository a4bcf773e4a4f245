/* Included by every operation: contributions to gradients, casts. */
#ifndef TAPEGRAD_OPS_SHARED_INTERNAL_H
#define TAPEGRAD_OPS_SHARED_INTERNAL_H

#include <math.h>
#include <string.h>

#include "ops/ops.h"
#include "ops/shared/math.h"
#include "tensor/internal.h"

/* If one tensor is bf16 and the other Real, casts the Real one to bf16. */
void cast_alike(Tape *tape, Tensor **a, Tensor **b);

/* to [n] <- from [n], of which one is bf16 and the other Real. */
void convert(Device *device, Gradient to, const Real *from, bool to_bf16, int64_t n);

/* The gradient of the elements from `first` on. */
static inline Gradient gradient_from(Gradient dx, int64_t first)
{
    return (Gradient){ dx.data + first, dx.accumulate };
}

#endif
