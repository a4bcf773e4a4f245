/* What kernels of all backends share: scratch memory, inline functions for CPU and CUDA, bf16. C
 * and CUDA sources include it. ops/kernel_list.h declares the kernels. */
#ifndef TAPEGRAD_TENSOR_KERNEL_H
#define TAPEGRAD_TENSOR_KERNEL_H

#include <string.h>

#include "tensor/tensor.h"

#ifdef __cplusplus
#define C_FUNCTION extern "C"
#else
#define C_FUNCTION
#endif

/* A kernel's scratch memory: n Reals on the current device, uninitialized. Raises when memory is
 * exhausted. The kernel frees it before it returns; an error frees all of the thread's. */
#pragma GCC visibility push(default)
C_FUNCTION Real *device_workspace(int64_t n);
C_FUNCTION void device_workspace_free(const Real *data);
#pragma GCC visibility pop

/* A function for CPU and CUDA kernels. */
#ifdef __CUDACC__
#define SHARED_FUNCTION static __host__ __device__ __forceinline__
#else
#define SHARED_FUNCTION static inline __attribute__((always_inline))
#endif

/* bf16: the upper 16 bits of a float. Rounds to nearest, ties to even; NaN stays NaN. */
SHARED_FUNCTION uint16_t bf16_of(Real value)
{
    const float x = (float)value;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = x != x ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1);
    return (uint16_t)(bits >> 16);
}
SHARED_FUNCTION Real real_of_bf16(uint16_t upper)
{
    const uint32_t bits = (uint32_t)upper << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (Real)value;
}

#endif
