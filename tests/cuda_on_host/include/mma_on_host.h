/* The operations of tensor/mma.cuh on the host: the lanes of a warp pass their registers or
 * addresses, and each computes its own fragment of the result. In memory, bf16 is uint16_t or a
 * struct of one. */
#ifndef CUDA_ON_HOST_MMA_H
#define CUDA_ON_HOST_MMA_H

#include "cuda_runtime.h"

#include <math.h>
#include <stdio.h>

static inline float cuda_host_bf16(uint32_t pair, int half)
{
    return cuda_host_bits<float>(half ? pair & 0xffff0000u : pair << 16);
}

/* The 16 elements of a row of a, or of a column of b, in the registers of 4 lanes. */
static inline void cuda_host_pairs(float *to, const uint32_t *const *lanes, int first_lane,
                                   int first_register, int registers_apart)
{
    for (int pair = 0; pair < 8; pair++) {
        const uint32_t *registers = lanes[first_lane + pair % 4];
        const uint32_t bits = registers[first_register + pair / 4 * registers_apart];
        to[2 * pair] = cuda_host_bf16(bits, 0);
        to[2 * pair + 1] = cuda_host_bf16(bits, 1);
    }
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

static inline void mma_bf16(float *sum, const uint32_t *a, const uint32_t *b,
                            const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    struct Operands {
        uint32_t at[6]; /* a, then b */
    } operands = { { a[0], a[1], a[2], a[3], b[0], b[1] } };
    cuda_host_warp_gather(
        "mma_bf16", operands,
        [sum](const Operands *const *all) {
            const uint32_t *lanes[32];
            for (int lane = 0; lane < 32; lane++)
                lanes[lane] = all[lane]->at;
            const int g = cuda_host_lane() / 4, t = cuda_host_lane() % 4;
            float rows[2][16], columns[2][16];
            for (int i = 0; i < 2; i++) {
                cuda_host_pairs(rows[i], lanes, 4 * g, i, 2);
                cuda_host_pairs(columns[i], lanes, 4 * (2 * t + i), 4, 1);
            }
            for (int i = 0; i < 4; i++) {
                double exact = sum[i];
                for (int k = 0; k < 16; k++)
                    exact += (double)rows[i / 2][k] * columns[i % 2][k];
                sum[i] = cuda_host_truncate(exact);
            }
        },
        file, line);
}

/* One of the eight elements at the address that a lane passes. */
static inline uint32_t cuda_host_matrix_number(const void *row, int column)
{
    uint16_t bits;
    memcpy(&bits, (const char *)row + 2 * column, sizeof bits);
    return bits;
}

static inline void cuda_host_load_matrices(uint32_t *to, const void *row, bool transposed,
                                           const char *file, int line)
{
    if ((uintptr_t)row % 16 != 0) {
        fprintf(stderr, "cuda_on_host: ldmatrix at %s:%d: a row is not aligned to 16 bytes\n", file,
                line);
        abort();
    }
    cuda_host_warp_gather(
        "ldmatrix", row,
        [to, transposed](const void *const *const *rows) {
            const int g = cuda_host_lane() / 4, t = cuda_host_lane() % 4;
            for (int i = 0; i < 4; i++) {
                const int first = transposed ? 2 * t : g, second = transposed ? 2 * t + 1 : g;
                to[i] = cuda_host_matrix_number(*rows[8 * i + first], transposed ? g : 2 * t) |
                        cuda_host_matrix_number(*rows[8 * i + second], transposed ? g : 2 * t + 1)
                            << 16;
            }
        },
        file, line);
}

static inline void load_matrices(uint32_t *to, const void *row, const char *file = __builtin_FILE(),
                                 int line = __builtin_LINE())
{
    cuda_host_load_matrices(to, row, false, file, line);
}

static inline void load_transposed(uint32_t *to, const void *row,
                                   const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    cuda_host_load_matrices(to, row, true, file, line);
}

/* Rounds to nearest, ties to even; NaN stays NaN. */
static inline uint32_t cuda_host_to_bf16(float x)
{
    const uint32_t bits = cuda_host_bits<uint32_t>(x);
    return (x != x ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

static inline uint32_t pack_bf16(float first, float second)
{
    return cuda_host_to_bf16(first) | cuda_host_to_bf16(second) << 16;
}

#endif
