/* Matrices in shared memory as operands of tensor-core products (mma.sync, tensor/cuda/mma.cuh). An
 * operand has one bf16 part or, as split bf16 (bf16x3), two: hi = bf16(x) and lo = bf16(x - hi).
 * The product of two such operands is hi hi + hi lo + lo hi. */
#ifndef TAPEGRAD_OPS_CUDA_SHARED_MMA_OPERANDS_CUH
#define TAPEGRAD_OPS_CUDA_SHARED_MMA_OPERANDS_CUH

#include "tensor/cuda/mma.cuh"

/* Rows are padded by MMA_PAD elements: they are aligned to 16 bytes, and eight consecutive rows
 * have no bank conflicts. */
enum { MMA_PAD = 8 };

/* PARTS parts [ROWS, PITCH] in shared memory. The second is shifted by half the banks, so that 64
 * bytes of each part are written at once. */
template <int PARTS, int ROWS, int PITCH> struct Matrix {
    enum { APART = ROWS * PITCH + 32, SIZE = PARTS * ROWS * PITCH + (PARTS - 1) * 32 };
    Bfloat16 *at;
};

/* A lane's registers of a [16, 16] tile: one operand a, or two adjacent operands b, of mma.cuh. */
template <int PARTS> struct Fragment {
    uint32_t at[PARTS][4];
};

/* Loads the lane's registers of each part; the parts are `apart` elements apart. */
template <bool TRANSPOSED, int PARTS>
__device__ static inline Fragment<PARTS> load_parts(const Bfloat16 *from, int apart)
{
    Fragment<PARTS> f;
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        if (TRANSPOSED)
            load_transposed(f.at[p], from + p * apart);
        else
            load_matrices(f.at[p], from + p * apart);
    }
    return f;
}

/* The address that a lane passes to ldmatrix, which loads the four [8, 8] quarters of a [16, 16]
 * tile at once: the second below the first, the third to its right. Each lane has the address of
 * one row; the tile is stored in m at (row, column). */
template <int PARTS, int ROWS, int PITCH>
__device__ static inline Bfloat16 *lane_address(const Matrix<PARTS, ROWS, PITCH> &m, int row,
                                                int column)
{
    const int lane = (int)threadIdx.x % WARP;
    return m.at + (row + lane % 16) * PITCH + column + lane / 16 * 8;
}

/* a = the tile of m at (row, column) */
template <int PARTS, int ROWS, int PITCH>
__device__ static inline Fragment<PARTS> a_of(const Matrix<PARTS, ROWS, PITCH> &m, int row,
                                              int column)
{
    return load_parts<false, PARTS>(lane_address(m, row, column),
                                    Matrix<PARTS, ROWS, PITCH>::APART);
}

/* b = the tile of m at (row, column) */
template <int PARTS, int ROWS, int PITCH>
__device__ static inline Fragment<PARTS> b_of(const Matrix<PARTS, ROWS, PITCH> &m, int row,
                                              int column)
{
    return load_parts<true, PARTS>(lane_address(m, row, column), Matrix<PARTS, ROWS, PITCH>::APART);
}

/* The same for m^T, whose (row, column) is m's (column, row): in m the second quarter is to the
 * right of the first. */
template <int PARTS, int ROWS, int PITCH>
__device__ static inline Bfloat16 *lane_address_transposed(const Matrix<PARTS, ROWS, PITCH> &m,
                                                           int row, int column)
{
    const int lane = (int)threadIdx.x % WARP;
    return m.at + (column + lane % 8 + lane / 16 * 8) * PITCH + row + lane % 16 / 8 * 8;
}

template <int PARTS, int ROWS, int PITCH>
__device__ static inline Fragment<PARTS> a_of_transposed(const Matrix<PARTS, ROWS, PITCH> &m,
                                                         int row, int column)
{
    return load_parts<true, PARTS>(lane_address_transposed(m, row, column),
                                   Matrix<PARTS, ROWS, PITCH>::APART);
}

template <int PARTS, int ROWS, int PITCH>
__device__ static inline Fragment<PARTS> b_of_transposed(const Matrix<PARTS, ROWS, PITCH> &m,
                                                         int row, int column)
{
    return load_parts<false, PARTS>(lane_address_transposed(m, row, column),
                                    Matrix<PARTS, ROWS, PITCH>::APART);
}

/* sums [2][4], two adjacent accumulators of mma.cuh, += a b */
template <int PARTS>
__device__ static inline void multiply(float (*sums)[4], const Fragment<PARTS> &a,
                                       const Fragment<PARTS> &b)
{
    enum { PRODUCTS = PARTS == 1 ? 1 : 3 }; /* hi hi, hi lo, lo hi */
#pragma unroll
    for (int product = 0; product < PRODUCTS; product++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            mma_bf16(sums[half], a.at[product == 2 ? PARTS - 1 : 0],
                     b.at[product == 1 ? PARTS - 1 : 0] + 2 * half);
}

/* Splits two elements into pairs of bf16, one pair per part. */
template <int PARTS>
__device__ static inline void split(uint32_t *parts, int apart, float first, float second)
{
    parts[0] = pack_bf16(first, second);
    if (PARTS > 1)
        parts[apart] = pack_bf16(first - first_of(parts[0]), second - second_of(parts[0]));
}

/* A lane has rows lane_row() and lane_row() + 8 of an accumulator, columns lane_column() and the
 * next. */
__device__ static inline int lane_row(void)
{
    return (int)threadIdx.x % WARP / 4;
}
__device__ static inline int lane_column(void)
{
    return (int)threadIdx.x % 4 * 2;
}

/* x, rounded as an operand is */
template <int PARTS> __device__ static inline Real as_operand(Real x)
{
    const Real hi = first_of(pack_bf16(x, 0));
    return PARTS > 1 ? hi + first_of(pack_bf16(x - hi, 0)) : hi;
}

#endif
