#include "ops/kernels.h"
#include "ops/cuda/shared/map.cuh"

template <typename T>
__global__ void gather_kernel(T *out, const T *x, const int32_t *index, int64_t O, int64_t C,
                              int64_t K, int64_t I)
{
    GRID_FOR(e, O * K * I) {
        const int64_t row = quotient(e, I), i = e - row * I, o = quotient(row, K);
        out[e] = x[(o * C + index[e]) * I + i];
    }
}

/* One thread per (o, i) adds in the order of k. */
template <typename T>
__global__ void gather_add_kernel(T *dx, const T *dout, const int32_t *index, int64_t O, int64_t C,
                                  int64_t K, int64_t I)
{
    GRID_FOR(column, O * I) {
        const int64_t o = quotient(column, I), i = column - o * I;
        for (int64_t k = 0; k < K; k++) {
            const int64_t e = (o * K + k) * I + i;
            contribute(&dx[(o * C + index[e]) * I + i], true, load(&dout[e]));
        }
    }
}

extern "C" void gather_forward_cuda(TensorType type, Real *out, const Real *x, const int32_t *index,
                                    AxisView v, int64_t K)
{
    BY_STORAGE(type, T,
               LAUNCH(gather_kernel<T>, blocks_for(v.outer * K * v.inner), THREADS, 0, (T *)out,
                      (const T *)x, index, v.outer, v.size, K, v.inner));
}

extern "C" void gather_backward_cuda(TensorType type, Real *dx, const Real *dout,
                                     const int32_t *index, AxisView v, int64_t K)
{
    BY_STORAGE(type, T,
               LAUNCH(gather_add_kernel<T>, blocks_for(v.outer * v.inner), THREADS, 0, (T *)dx,
                      (const T *)dout, index, v.outer, v.size, K, v.inner));
}
