#include "ops/kernels.h"
#include "tensor/cuda/kernel.cuh"

enum { SEGMENT = 4096 }; /* elements */

/* partial [segments] <- the sums of squares over equal segments, one block per segment */
template <typename T>
__global__ void squared_error_segments(Real *partial, const T *prediction, const T *target,
                                       int64_t segments, int64_t n)
{
    for (int64_t segment = blockIdx.x; segment < segments; segment += gridDim.x) {
        const int64_t start = segment * n / segments, end = (segment + 1) * n / segments;
        Real sum = 0;
        for (int64_t i = start + threadIdx.x; i < end; i += blockDim.x) {
            const Real difference = load(&prediction[i]) - load(&target[i]);
            sum += difference * difference;
        }
        sum = block_sum(sum);
        if (threadIdx.x == 0)
            partial[segment] = sum;
    }
}

/* One block. */
__global__ void mean_of_segments(Real *out, const Real *partial, int64_t segments, int64_t n)
{
    double sum = 0;
    GRID_FOR(segment, segments)
        sum += (double)partial[segment];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *out = (Real)(sum / (double)n);
}

template <typename T>
__global__ void mean_squared_error_backward(T *dp, bool accumulate, Real sign, const Real *dout,
                                            const T *prediction, const T *target, int64_t n)
{
    const Real scale = sign * 2 * *dout / (Real)n;
    GRID_FOR(i, n)
        contribute(&dp[i], accumulate, scale * (load(&prediction[i]) - load(&target[i])));
}

extern "C" void mean_squared_error_forward_cuda(TensorType type, Real *out, const Real *prediction,
                                                const Real *target, int64_t n)
{
    const int64_t segments = (n + SEGMENT - 1) / SEGMENT;
    Real *partial = device_workspace(segments);
    BY_STORAGE(type, T,
               LAUNCH(squared_error_segments<T>, blocks_for(segments, 1), THREADS, 0, partial,
                      (const T *)prediction, (const T *)target, segments, n));
    LAUNCH(mean_of_segments, 1, THREADS, 0, out, (const Real *)partial, segments, n);
    device_workspace_free(partial);
}

extern "C" void mean_squared_error_backward_cuda(TensorType type, Gradient dp, Real sign,
                                                 const Real *dout, const Real *prediction,
                                                 const Real *target, int64_t n)
{
    BY_STORAGE(type, T,
               LAUNCH(mean_squared_error_backward<T>, blocks_for(n), THREADS, 0, (T *)dp.data,
                      dp.accumulate, sign, dout, (const T *)prediction, (const T *)target, n));
}
