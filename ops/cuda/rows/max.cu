#include "ops/kernels.h"
#include "tensor/cuda/kernel.cuh"

struct Largest {
    Real value;
    int64_t index;
};

/* Whether a comes before b: NaN, then larger values, then lower indices. */
__device__ static inline bool before(Largest a, Largest b)
{
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan != b_nan)
        return a_nan;
    return a.value > b.value || ((a_nan || a.value == b.value) && a.index < b.index);
}

/* `lanes` threads per maximum, 1 or WARP: a warp for rows; a thread if adjacent maxima read
 * adjacent elements. */
template <typename T>
__global__ void argmax_kernel(int32_t *index, const T *x, int64_t outer, int64_t size,
                              int64_t inner, int lanes)
{
    const int lane = threadIdx.x % lanes, groups = blockDim.x / lanes;
    for (int64_t item = (int64_t)blockIdx.x * groups + threadIdx.x / lanes; item < outer * inner;
         item += (int64_t)gridDim.x * groups) {
        const T *column = x + item / inner * size * inner + item % inner;
        Largest best = { -(Real)INFINITY, size };
        for (int64_t j = lane; j < size; j += lanes) {
            const Largest here = { load(&column[j * inner]), j };
            best = before(here, best) ? here : best;
        }
        for (int offset = lanes / 2; offset > 0; offset /= 2) {
            const Largest other = { __shfl_xor_sync(0xffffffffu, best.value, offset),
                                    __shfl_xor_sync(0xffffffffu, best.index, offset) };
            best = before(other, best) ? other : best;
        }
        if (lane == 0)
            index[item] = (int32_t)best.index;
    }
}

extern "C" void argmax_cuda(TensorType type, int32_t *index, const Real *x, AxisView v)
{
    const int lanes = v.inner < WARP ? WARP : 1;
    BY_STORAGE(type, T,
               LAUNCH(argmax_kernel<T>, blocks_for(v.outer * v.inner, THREADS / lanes), THREADS, 0,
                      index, (const T *)x, v.outer, v.size, v.inner, lanes));
}
