/* What the operations share. */
#ifndef TAPEGRAD_OPS_SHARED_INTERNAL_H
#define TAPEGRAD_OPS_SHARED_INTERNAL_H

#include <math.h>
#include <string.h>

#include "ops/shared/math.h"
#include "ops/ops.h"
#include "tensor/internal.h"
#include "tensor/parallel.h"

/* Where one is stored in bf16 and the other in Real, converts the latter. */
void cast_alike(Tape *tape, Tensor **a, Tensor **b);

/* to [n] = from [n], in bf16. */
void convert_to_bf16(Device *device, void *to, const Real *from, int64_t n);

/* One element's contribution to a gradient: kernels take (Real *dx, bool accumulate, ...). What was
 * there, which may be anything when it does not count, is masked and not selected: gcc 12 turns no
 * selection by a loop's constant into vector instructions. */
static inline void contribute(Real *dx, bool accumulate, Real value)
{
    *dx = real_from_bits(real_bits(*dx) & -(RealBits)accumulate) + value;
}

#endif
