/* One polynomial feature on CUDA. */
#ifndef TAPEGRAD_FEATURES_CUDA_POLYNOMIAL_CUH
#define TAPEGRAD_FEATURES_CUDA_POLYNOMIAL_CUH

#include "ext/features/kernels.h"
#include "ops/cuda/shared/map.cuh"

/* Feature f of a row x [D]. */
template <typename T>
__device__ static inline Real polynomial_feature(const T *x, int64_t f, int64_t D)
{
    if (f == 0)
        return 1;
    if (f <= D)
        return SQRT_2 * load(&x[f - 1]);
    const int64_t place = f - 1 - D, d = quotient(place, D), i = place - d * D, j = i + d;
    return polynomial_factor(d) * load(&x[i]) * load(&x[j < D ? j : j - D]);
}

#endif
