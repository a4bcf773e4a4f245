/* Moving contiguous elements of either dtype. */
#ifndef TAPEGRAD_OPS_CPU_LAYOUT_LAYOUT_H
#define TAPEGRAD_OPS_CPU_LAYOUT_LAYOUT_H

#include "ops/cpu/shared/storage.h"
#include "ops/shared/internal.h"

/* to[i + c] <- from[j + c], c < count. A copy of bf16 elements does not convert them. */
ALWAYS_INLINE void contribute_run(int T, Real *to, int64_t i, bool accumulate, const Real *from,
                                  int64_t j, int64_t count)
{
    if (T == TENSOR_BF16 && !accumulate)
        memcpy(elements_at(T, to, i), elements_at(T, from, j), (size_t)count * element_bytes(T));
    else
#pragma omp simd
        for (int64_t c = 0; c < count; c++)
            contribute(T, to, i + c, accumulate, load(T, from, j + c));
}

#endif
