/* Matrix products on tensor cores: mma.sync.m16n8k16 multiplies bf16 and accumulates in float;
 * ldmatrix loads its operands from shared memory. All lanes of a warp must call them together.
 *
 * A fragment is the part of a matrix that one lane holds. With g = lane / 4 and t = lane % 4:
 *     a [16, 16]    a[0]: row g,     columns 2t, 2t + 1     a[2]: row g,     columns 2t + 8, 2t + 9
 *                   a[1]: row g + 8, columns 2t, 2t + 1     a[3]: row g + 8, columns 2t + 8, 2t + 9
 *     b [16, 8]     b[0]: rows 2t, 2t + 1, column g         b[1]: rows 2t + 8, 2t + 9, column g
 *     sum [16, 8]   sum[0], sum[1]: row g,     columns 2t, 2t + 1
 *                   sum[2], sum[3]: row g + 8, columns 2t, 2t + 1
 * A register of a or b holds two bf16 elements, the first in its lower half. */
#ifndef TAPEGRAD_TENSOR_MMA_CUH
#define TAPEGRAD_TENSOR_MMA_CUH

#include "tensor/cuda/kernel.cuh"

#ifdef TAPEGRAD_CUDA_ON_HOST
#include <mma_on_host.h>
#else

/* sum += a b */
__device__ static inline void mma_bf16(float *sum, const uint32_t *a, const uint32_t *b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Loads four matrices [8, 8] from shared memory: a lane's `row` is the address of row lane % 8 of
 * matrix lane / 8, aligned to 16 bytes; to[i] receives columns 2t, 2t + 1 of row g of matrix i. */
__device__ static inline void load_matrices(uint32_t *to, const Bfloat16 *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* The same matrices transposed: to[i] receives rows 2t, 2t + 1 of column g. */
__device__ static inline void load_transposed(uint32_t *to, const Bfloat16 *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* Two floats rounded to bf16, the first in the lower half. */
__device__ static inline uint32_t pack_bf16(float first, float second)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

#endif

__device__ static inline float first_of(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}

__device__ static inline float second_of(uint32_t pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}

#endif
