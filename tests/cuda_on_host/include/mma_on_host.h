/* The operations of tensor/cuda/mma.cuh on the host: the lanes of a warp pass their registers or
 * addresses, and each computes its own fragment of the result. In memory, bf16 is uint16_t or a
 * struct of one. */
#ifndef CUDA_ON_HOST_MMA_H
#define CUDA_ON_HOST_MMA_H

#include "cuda_runtime.h"

#include <math.h>
#include <stdio.h>

/* The two bf16 of a register. */
static inline void cuda_host_pair(uint32_t pair, float *first, float *second)
{
    *first = cuda_host_bits<float>(pair << 16);
    *second = cuda_host_bits<float>(pair & 0xffff0000u);
}

/* Tensor cores round sums towards zero (Fasi et al. 2021, Numerical behavior of NVIDIA tensor
 * cores). Infinity and NaN stay unchanged. */
static inline float cuda_host_truncate(double exact)
{
    const float nearest = (float)exact;
    return fabs((double)nearest) > fabs(exact)
               ? cuda_host_bits<float>(cuda_host_bits<uint32_t>(nearest) - 1)
               : nearest;
}

struct CudaHostMma {
    float *sum;
    const uint32_t *a, *b;
};

/* sum [16, 8] += a [16, 16] b [16, 8]. Lane 4 g + t holds rows g and g + 8 of a and sum, columns g
 * of b, 2 t and 2 t + 1 of sum, and the pairs t and t + 4 of the 16 terms. */
static inline void cuda_host_mma(const uint64_t *operands)
{
    float a[16][16], b[16][8];
    double sum[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const CudaHostMma *of = (const CudaHostMma *)operands[lane];
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; i++) {
            float *pair = &a[g + i % 2 * 8][2 * t + i / 2 * 8];
            cuda_host_pair(of->a[i], pair, pair + 1);
            sum[g + i / 2 * 8][2 * t + i % 2] = of->sum[i];
        }
        for (int i = 0; i < 2; i++)
            cuda_host_pair(of->b[i], &b[2 * t + i * 8][g], &b[2 * t + i * 8 + 1][g]);
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++)
            for (int column = 0; column < 8; column++)
                sum[row][column] += (double)a[row][k] * b[k][column];
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            ((const CudaHostMma *)operands[lane])->sum[i] =
                cuda_host_truncate(sum[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2]);
}

static inline void mma_bf16(float *sum, const uint32_t *a, const uint32_t *b,
                            const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    CudaHostMma operands = { sum, a, b };
    cuda_host_warp_together("mma_bf16", &operands, cuda_host_mma, file, line);
}

struct CudaHostMatrices {
    uint32_t *to;
    const void *row; /* of 8 elements; lanes 8 i to 8 i + 7 have those of matrix i */
};

/* Lane 4 g + t gets elements 2 t and 2 t + 1 of row g of each matrix, or of its transpose. */
template <bool TRANSPOSED> static inline void cuda_host_load_matrices(const uint64_t *operands)
{
    for (int i = 0; i < 4; i++) {
        uint16_t rows[8][8];
        for (int row = 0; row < 8; row++)
            memcpy(rows[row], ((const CudaHostMatrices *)operands[8 * i + row])->row,
                   sizeof rows[row]);
        for (int lane = 0; lane < 32; lane++) {
            const int g = lane / 4, t = lane % 4;
            const uint32_t first = TRANSPOSED ? rows[2 * t][g] : rows[g][2 * t];
            const uint32_t second = TRANSPOSED ? rows[2 * t + 1][g] : rows[g][2 * t + 1];
            ((const CudaHostMatrices *)operands[lane])->to[i] = first | second << 16;
        }
    }
}

template <bool TRANSPOSED>
static inline void cuda_host_load(uint32_t *to, const void *row, const char *file, int line)
{
    if ((uintptr_t)row % 16 != 0) {
        fprintf(stderr, "cuda_on_host: ldmatrix at %s:%d: a row is not aligned to 16 bytes\n", file,
                line);
        abort();
    }
    CudaHostMatrices operands = { to, row };
    cuda_host_warp_together("ldmatrix", &operands, cuda_host_load_matrices<TRANSPOSED>, file, line);
}

static inline void load_matrices(uint32_t *to, const void *row, const char *file = __builtin_FILE(),
                                 int line = __builtin_LINE())
{
    cuda_host_load<false>(to, row, file, line);
}

static inline void load_transposed(uint32_t *to, const void *row,
                                   const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    cuda_host_load<true>(to, row, file, line);
}

static inline uint32_t pack_bf16(float first, float second)
{
    return round_to_bf16(first) | (uint32_t)round_to_bf16(second) << 16;
}

#endif
