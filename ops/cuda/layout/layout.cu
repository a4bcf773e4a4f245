#include "ops/kernels.h"
#include "ops/cuda/shared/map.cuh"

/* One thread copies LANES elements of a row at a time. */
template <typename T, int LANES>
__global__ void copy_rows_kernel(T *to, int64_t to_stride, bool accumulate, const T *from,
                                 int64_t from_stride, int64_t rows, int64_t columns)
{
    const int64_t packs = columns / LANES;
    GRID_FOR(p, rows * packs) {
        const int64_t r = quotient(p, packs), c = (p - r * packs) * LANES;
        contribute_pack<LANES>(&to[r * to_stride + c], accumulate,
                               load_pack<LANES>(&from[r * from_stride + c]));
    }
}

template <typename T>
static void launch_copy_rows(T *to, int64_t to_stride, bool accumulate, const T *from,
                             int64_t from_stride, int64_t rows, int64_t columns)
{
    constexpr int LANES = lanes_of<T>;
    if (packs_fit<LANES>(to) && packs_fit<LANES>(from) &&
        (to_stride | from_stride | columns) % LANES == 0)
        LAUNCH((copy_rows_kernel<T, LANES>), blocks_for(rows * columns / LANES), THREADS, 0, to,
               to_stride, accumulate, from, from_stride, rows, columns);
    else
        LAUNCH((copy_rows_kernel<T, 1>), blocks_for(rows * columns), THREADS, 0, to, to_stride,
               accumulate, from, from_stride, rows, columns);
}

extern "C" void copy_rows_cuda(TensorType type, Gradient to, int64_t to_stride, const Real *from,
                               int64_t from_stride, int64_t rows, int64_t columns)
{
    BY_STORAGE(type, T,
               launch_copy_rows((T *)to.data, to_stride, to.accumulate, (const T *)from,
                                from_stride, rows, columns));
}
