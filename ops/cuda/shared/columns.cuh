/* Sums over the rows of a matrix x [R, C], in double precision: the kernels are memory-bound, so
 * the additions cost no time. */
#ifndef TAPEGRAD_OPS_SHARED_COLUMNS_CUH
#define TAPEGRAD_OPS_SHARED_COLUMNS_CUH

#include "ops/shared/columns.h"
#include "autograd/tape.h"
#include "tensor/cuda/kernel.cuh"

/* The sum of a part, which a second kernel reads. */
struct PartialSum {
    double value;
};

__device__ static inline double term(const PartialSum *x)
{
    return x->value;
}
template <typename T> __device__ static inline double term(const T *x)
{
    return (double)load(x);
}

/* out <- factor sum */
__device__ static inline void store_sum(PartialSum *out, bool, double, double sum)
{
    out->value = sum;
}
template <typename T>
__device__ static inline void store_sum(T *out, bool accumulate, double factor, double sum)
{
    contribute(out, accumulate, (Real)(factor * sum));
}

/* Number of parts per sum, for `sums` sums of n elements each and `sums_each` sums per thread
 * block: about 1000 blocks, but at least 8 elements per thread. */
static inline int64_t sum_parts(int64_t n, int64_t sums, int64_t sums_each)
{
    const int64_t enough = 1024 / ((sums + sums_each - 1) / sums_each);
    const int64_t most = n * sums_each / (8 * THREADS);
    const int64_t parts = enough < most ? enough : most;
    return parts > 1 ? parts : 1;
}

/* Scratch memory of the parts in Reals; none for a single part. */
static inline int64_t sum_scratch(int64_t parts, int64_t sums)
{
    return parts > 1 ? parts * sums * (int64_t)(sizeof(PartialSum) / sizeof(Real)) : 0;
}

/* Number of adjacent columns per thread block, a power of two. A block reads THREADS / lanes rows
 * at a time, so its loads are coalesced even if rows are short. */
static inline int column_lanes(int64_t C)
{
    int lanes = 1;
    while (lanes < C && lanes < WARP)
        lanes *= 2;
    return lanes;
}

/* The sum of value over the threads with equal threadIdx.x % lanes. All THREADS threads of the
 * block must call; threads below lanes get the result. */
__device__ static inline double lane_sum(double value, int lanes)
{
    __shared__ double parts[THREADS];
    const int row = threadIdx.x / lanes;
    parts[threadIdx.x] = value;
    for (int half = THREADS / lanes / 2; half > 0; half /= 2) {
        __syncthreads();
        if (row < half)
            parts[threadIdx.x] += parts[threadIdx.x + half * lanes];
    }
    value = parts[threadIdx.x];
    __syncthreads(); /* the next call may write */
    return value;
}

/* The sum of column c over first <= row < end; c is the block's first column + threadIdx.x % lanes.
 * All threads of the block must call; threads below lanes get the result. */
template <typename T>
__device__ static inline double block_column_sum(const T *x, int64_t first, int64_t end, int64_t C,
                                                 int64_t c, int lanes)
{
    const int row = threadIdx.x / lanes, rows = THREADS / lanes;
    double sum = 0;
    if (c < C)
#pragma unroll 8
        for (int64_t r = first + row; r < end; r += rows)
            sum += term(&x[r * C + c]);
    return lane_sum(sum, lanes);
}

/* out [parts, C] <- factor * the sums over each part of the rows of x. Thread block (i, j) sums
 * part j of its columns. */
template <typename Out, typename T>
__global__ void column_sums_kernel(Out *out, bool accumulate, double factor, const T *x, int64_t R,
                                   int64_t C, int lanes)
{
    const int64_t c = (int64_t)blockIdx.x * lanes + threadIdx.x % lanes;
    const int64_t part = blockIdx.y, parts = gridDim.y;
    const double sum = block_column_sum(x, R * part / parts, R * (part + 1) / parts, C, c, lanes);
    if ((int)threadIdx.x < lanes && c < C)
        store_sum(&out[part * C + c], accumulate, factor, sum);
}

template <typename Out, typename T>
static void launch_column_sums(Out *out, int64_t parts, bool accumulate, double factor, const T *x,
                               int64_t R, int64_t C)
{
    const int lanes = column_lanes(C);
    const dim3 blocks((unsigned)((C + lanes - 1) / lanes), (unsigned)parts);
    LAUNCH((column_sums_kernel<Out, T>), blocks, THREADS, 0, out, accumulate, factor, x, R, C,
           lanes);
}

/* Two sums over parts in one kernel launch: first [C] and second [C] <- the sums over the parts of
 * partial [2, parts, C]. The data of either may be NULL. */
void add_part_pairs(Gradient first, Gradient second, const Real *partial, int64_t parts, int64_t C);

#endif
