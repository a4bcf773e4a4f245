#include "ops/shared/columns.cuh"
#include "ops/shared/map.cuh"

/* out [rows, parts] <- factor times the sum of each part of each row of x; one block per sum */
template <typename Out, typename T>
__global__ void row_sums(Out *out, Real factor, const T *x, int64_t rows, int64_t columns,
                         int64_t parts)
{
    for (int64_t item = blockIdx.x; item < rows * parts; item += gridDim.x) {
        const int64_t part = item % parts, end = columns * (part + 1) / parts;
        const T *row = x + item / parts * columns;
        double sum = 0;
#pragma unroll 8
        for (int64_t c = columns * part / parts + threadIdx.x; c < end; c += blockDim.x)
            sum += term(&row[c]);
        sum = block_sum(sum);
        if (threadIdx.x == 0)
            store_sum(&out[item], false, factor, sum);
    }
}

template <typename Out, typename T>
static void launch_row_sums(Out *out, Real factor, const T *x, int64_t rows, int64_t columns,
                            int64_t parts)
{
    const int threads = columns / parts > 16 * WARP ? THREADS : WARP;
    LAUNCH((row_sums<Out, T>), blocks_for(rows * parts, 1), threads, 0, out, factor, x, rows,
           columns, parts);
}

/* Element i is x[i / times]. */
struct StretchedInput {
    const Real *x;
    int64_t times;

    template <int LANES> bool fits() const
    {
        return times % LANES == 0;
    }
    __device__ Real at(int64_t i) const
    {
        return x[quotient(i, times)];
    }
    template <int LANES> __device__ Reals<LANES> pack(int64_t i) const
    {
        const Real value = at(i);
        Reals<LANES> result;
#pragma unroll
        for (int k = 0; k < LANES; k++)
            result.number[k] = value;
        return result;
    }
};

extern "C" int64_t sum_scratch_cuda(int64_t rows, int64_t columns)
{
    return sum_scratch(sum_parts(columns, rows, 1), rows);
}

extern "C" void sum_forward_cuda(Real *out, Real *scratch, Real factor, const Real *x, int64_t rows,
                                 int64_t columns)
{
    const int64_t parts = sum_parts(columns, rows, 1);
    PartialSum *partial = (PartialSum *)scratch;
    if (parts == 1) {
        BY_STORAGE(T, launch_row_sums(out, factor, (const T *)x, rows, columns, 1));
    } else {
        BY_STORAGE(T, launch_row_sums(partial, 1, (const T *)x, rows, columns, parts));
        launch_row_sums(out, factor, (const PartialSum *)partial, rows, parts, 1);
    }
}

extern "C" void sum_backward_cuda(Real *dx, bool accumulate, Real factor, const Real *dout,
                                  int64_t rows, int64_t columns)
{
    map(ScaleBy{ factor }, dx, accumulate, rows * columns, StretchedInput{ dout, columns });
}
