/* The kernel before attention's backward pass: a dot product per row. */
#ifndef TAPEGRAD_OPS_CUDA_SHARED_ROW_DELTAS_CUH
#define TAPEGRAD_OPS_CUDA_SHARED_ROW_DELTAS_CUH

#include "ops/cuda/shared/mma_operands.cuh"
#include "ops/cuda/shared/tiles.cuh"

/* delta [rows] = -g.out (-D_i of softmax.c), or -(g / divisor).out (dden of linear attention), of g
 * and out [rows, columns]. With PARTS the factors g / divisor are rounded as operands of
 * mma_operands.cuh, so that the rounding cancels in sums of dnum.v + dden. 8 lanes per row; a warp
 * loads 16 rows at once. */
template <int PARTS, typename T>
__global__ void row_deltas(Real *delta, const T *g, const T *out, const Real *divisor, int64_t rows,
                           int64_t columns, bool aligned)
{
    enum { PIECE = 16 / sizeof(T), LANES = 8, DOWN = WARP / LANES, BATCH = 4 };
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t step = (int64_t)gridDim.x * (THREADS / WARP) * DOWN * BATCH;
    for (int64_t first = ((int64_t)blockIdx.x * (THREADS / WARP) + warp) * DOWN * BATCH;
         first < rows; first += step) {
        Real dots[BATCH] = {}, factors[BATCH];
        int64_t row[BATCH];
#pragma unroll
        for (int r = 0; r < BATCH; r++) {
            row[r] = min(first + r * DOWN + lane / LANES, rows - 1);
            factors[r] = divisor ? 1 / divisor[row[r]] : (Real)1;
        }
        for (int64_t c = lane % LANES * PIECE; c < columns; c += LANES * PIECE) {
            Pack<T, PIECE> x[BATCH], y[BATCH];
#pragma unroll
            for (int r = 0; r < BATCH; r++) {
                x[r] = load_pack<PIECE>(g + row[r] * columns + c, columns - c, aligned);
                y[r] = load_pack<PIECE>(out + row[r] * columns + c, columns - c, aligned);
            }
#pragma unroll
            for (int r = 0; r < BATCH; r++)
#pragma unroll
                for (int i = 0; i < PIECE; i++) {
                    const Real factor = load(&x[r].at[i]) * factors[r];
                    dots[r] += (PARTS ? as_operand<PARTS>(factor) : factor) * load(&y[r].at[i]);
                }
        }
#pragma unroll
        for (int r = 0; r < BATCH; r++) {
            for (int offset = LANES / 2; offset > 0; offset /= 2)
                dots[r] += __shfl_xor_sync(0xffffffffu, dots[r], offset);
            if (lane % LANES == 0 && first + r * DOWN + lane / LANES < rows)
                delta[row[r]] = -dots[r];
        }
    }
}

template <typename T, int PARTS = 0>
static void launch_row_deltas(Real *delta, const Real *g, const Real *out, const Real *divisor,
                              int64_t rows, int64_t columns)
{
    const bool aligned = ((uintptr_t)g | (uintptr_t)out) % 16 == 0 && columns * sizeof(T) % 16 == 0;
    LAUNCH((row_deltas<PARTS, T>), blocks_for(rows, THREADS / 2), THREADS, 0, delta, (const T *)g,
           (const T *)out, divisor, rows, columns, aligned);
}

#endif
