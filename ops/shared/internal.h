/* Included by every operation: contributions to gradients, casts. */
#ifndef TAPEGRAD_OPS_SHARED_INTERNAL_H
#define TAPEGRAD_OPS_SHARED_INTERNAL_H

#include <math.h>
#include <string.h>

#include "ops/ops.h"
#include "ops/shared/math.h"
#include "tensor/internal.h"
#include "tensor/storage.h"

/* If one tensor is bf16 and the other Real, casts the Real one to bf16. */
void cast_alike(Tape *tape, Tensor **a, Tensor **b);

/* to [n] = from [n], in bf16. */
void convert_to_bf16(Device *device, void *to, const Real *from, int64_t n);

/* Contributes to element i of a gradient: adds to dx[i] if accumulate, else stores. The old value,
 * which may be uninitialized if not accumulate, is masked by bits and not selected: gcc 12 does not
 * vectorize a selection by a loop-invariant condition. */
ALWAYS_INLINE void contribute(int T, Real *dx, int64_t i, bool accumulate, Real value)
{
    if (T == TENSOR_BF16) {
        Bfloat16 *d = (Bfloat16 *)dx + i;
        *d = bf16_of(real_of_bf16((uint16_t)(*d & -(unsigned)accumulate)) + value);
    } else {
        dx[i] = real_from_bits(real_bits(dx[i]) & -(RealBits)accumulate) + value;
    }
}

/* The gradient of the elements from `first` on. */
static inline Gradient gradient_from(Gradient dx, int64_t first)
{
    return (Gradient){ dx.data + first, dx.accumulate };
}

#endif
