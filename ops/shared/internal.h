/* Included by every operation: contributions to gradients, casts. */
#ifndef TAPEGRAD_OPS_SHARED_INTERNAL_H
#define TAPEGRAD_OPS_SHARED_INTERNAL_H

#include <math.h>
#include <string.h>

#include "ops/shared/math.h"
#include "ops/ops.h"
#include "tensor/internal.h"

/* If one tensor is bf16 and the other Real, casts the Real one to bf16. */
void cast_alike(Tape *tape, Tensor **a, Tensor **b);

/* to [n] = from [n], in bf16. */
void convert_to_bf16(Device *device, void *to, const Real *from, int64_t n);

/* Contributes one element to a gradient: adds to *dx if accumulate, else stores. The old value,
 * which may be uninitialized if not accumulate, is masked by bits and not selected: gcc 12 does not
 * vectorize a selection by a loop-invariant condition. */
static inline void contribute(Real *dx, bool accumulate, Real value)
{
    *dx = real_from_bits(real_bits(*dx) & -(RealBits)accumulate) + value;
}

#endif
