/* Sums over the rows of a matrix x [R, C]. They run in double precision, as waiting for memory takes
 * longer than the additions. */
#ifndef TAPEGRAD_OPS_SHARED_COLUMNS_CUH
#define TAPEGRAD_OPS_SHARED_COLUMNS_CUH

#include "tensor/kernel.cuh"

/* A sum over a part, which a second kernel reads. */
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
__device__ static inline void put_sum(PartialSum *out, bool, Real, double sum)
{
    out->value = sum;
}
template <typename T>
__device__ static inline void put_sum(T *out, bool accumulate, Real factor, double sum)
{
    contribute(out, accumulate, factor * (Real)sum);
}

/* Into how many parts a sum of n numbers is cut where there are `sums` such sums and a block of
 * threads makes `sums_each` of them: so that there are about 1000 blocks, but a thread has 8 numbers
 * at least. */
static inline int64_t sum_parts(int64_t n, int64_t sums, int64_t sums_each)
{
    const int64_t enough = 1024 / ((sums + sums_each - 1) / sums_each);
    const int64_t most = n * sums_each / (8 * THREADS);
    const int64_t parts = enough < most ? enough : most;
    return parts > 1 ? parts : 1;
}

/* How many Reals of scratch memory the parts take; one part takes none. */
static inline int64_t sum_scratch(int64_t parts, int64_t sums)
{
    return parts > 1 ? parts * sums * (int64_t)(sizeof(PartialSum) / sizeof(Real)) : 0;
}

/* A block takes so many neighbouring columns, a power of two, and THREADS / lanes rows at a time:
 * it reads whole stretches of memory also where a row is short. */
static inline int column_lanes(int64_t C)
{
    int lanes = 1;
    while (lanes < C && lanes < WARP)
        lanes *= 2;
    return lanes;
}

/* The sum of column c from row `first` to `end`, c a block's first column + threadIdx.x % lanes.
 * Threads below lanes get the result; all threads of the block must call. */
template <typename T>
__device__ static inline double block_column_sum(const T *x, int64_t first, int64_t end, int64_t C,
                                                 int64_t c, int lanes)
{
    __shared__ double parts[THREADS];
    const int row = threadIdx.x / lanes, rows = THREADS / lanes;
    double sum = 0;
    if (c < C)
#pragma unroll 8
        for (int64_t r = first + row; r < end; r += rows)
            sum += term(&x[r * C + c]);
    parts[threadIdx.x] = sum;
    for (int half = rows / 2; half > 0; half /= 2) {
        __syncthreads();
        if (row < half)
            parts[threadIdx.x] += parts[threadIdx.x + half * lanes];
    }
    sum = parts[threadIdx.x];
    __syncthreads(); /* the next call may write */
    return sum;
}

/* out [parts, C] <- factor times the sums over each of so many parts of the rows of x. Block (i, j)
 * makes the sums of part j in its columns. */
template <typename Out, typename T>
__global__ void column_sums_kernel(Out *out, bool accumulate, Real factor, const T *x, int64_t R,
                                   int64_t C, int lanes)
{
    const int64_t c = (int64_t)blockIdx.x * lanes + threadIdx.x % lanes;
    const int64_t part = blockIdx.y, parts = gridDim.y;
    const double sum = block_column_sum(x, R * part / parts, R * (part + 1) / parts, C, c, lanes);
    if ((int)threadIdx.x < lanes && c < C)
        put_sum(&out[part * C + c], accumulate, factor, sum);
}

template <typename Out, typename T>
static void launch_column_sums(Out *out, int64_t parts, bool accumulate, Real factor, const T *x,
                               int64_t R, int64_t C)
{
    const int lanes = column_lanes(C);
    const dim3 blocks((unsigned)((C + lanes - 1) / lanes), (unsigned)parts);
    LAUNCH((column_sums_kernel<Out, T>), blocks, THREADS, 0, out, accumulate, factor, x, R, C,
           lanes);
}

#endif
