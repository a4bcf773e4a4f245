/* Shared by the kernels along the last axis. LANES threads share a row, one warp or, for a long
 * row, one block; each thread processes every LANES-th element. */
#ifndef TAPEGRAD_OPS_SHARED_ROWS_CUH
#define TAPEGRAD_OPS_SHARED_ROWS_CUH

#include "ops/shared/math.h"
#include "tensor/cuda/kernel.cuh"

enum { LONG_ROW = 1024 }; /* elements; a longer row gets a block */

/* Launches kernel<T, LANES> for R rows of C elements, LANES = WARP or THREADS by the length of a
 * row; the rest are the kernel's arguments. */
#define LAUNCH_ROWS(kernel, T, R, C, ...)                                                          \
    do {                                                                                           \
        if ((C) <= LONG_ROW)                                                                       \
            LAUNCH((kernel<T, WARP>), blocks_for(R, THREADS / WARP), THREADS, 0, __VA_ARGS__);     \
        else                                                                                       \
            LAUNCH((kernel<T, THREADS>), blocks_for(R, 1), THREADS, 0, __VA_ARGS__);               \
    } while (0)

/* ROW_FOR(row, R, LANES): a loop over the thread's rows, the same for all threads that share a row,
 * so that all of them reach row_sum and row_max. LANE_FOR(c, C, LANES): a loop over the thread's
 * elements c of a row of C; adjacent threads process adjacent elements. */
#define ROW_FOR(row, R, LANES)                                                                     \
    for (int64_t row = (int64_t)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES; row < (R);   \
         row += (int64_t)gridDim.x * (THREADS / LANES))
#define LANE_FOR(c, C, LANES) for (int64_t c = threadIdx.x % LANES; c < (C); c += LANES)

/* The sum, and the maximum ignoring NaN, over the threads that share a row. All of them must call;
 * all receive the result. */
template <int LANES> __device__ static inline Real row_sum(Real value)
{
    return LANES == WARP ? warp_sum(value) : block_sum(value);
}

template <int LANES> __device__ static inline Real row_max(Real value)
{
    if (LANES == WARP)
        return warp_max(value);
    __shared__ Real parts[LANES / WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    value = warp_max(value);
    __syncthreads(); /* all threads have read the parts of an earlier call */
    if (lane == 0)
        parts[warp] = value;
    __syncthreads();
    return warp_max(parts[lane % (LANES / WARP)]);
}

/* m = max_c x_c of x [C], ignoring NaN */
template <int LANES, typename T> __device__ static inline Real max_of_row(const T *x, int64_t C)
{
    Real m = -(Real)INFINITY;
    LANE_FOR(c, C, LANES) {
        const Real value = load(&x[c]);
        m = value > m ? value : m;
    }
    return row_max<LANES>(m);
}

/* sum_c e^(x_c - m) */
template <int LANES, typename T>
__device__ static inline Real exp_sum_of_row(const T *x, Real m, int64_t C)
{
    Real sum = 0;
    LANE_FOR(c, C, LANES)
        sum += exp(load(&x[c]) - m);
    return row_sum<LANES>(sum);
}

template <int LANES, typename T>
__device__ static inline LogSumExp log_sum_exp_of_row(const T *x, int64_t C)
{
    const Real m = max_of_row<LANES>(x, C);
    return { m, log(exp_sum_of_row<LANES>(x, m, C)) };
}

#endif
