#include "ops/losses/kernels.h"
#include "tensor/cuda/kernel.cuh"

/* partial [pieces] <- the sums of squares over equal pieces, one block per piece */
template <typename T>
__global__ void squared_error_pieces(Real *partial, const T *prediction, const T *target,
                                     int64_t pieces, int64_t n)
{
    for (int64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
        const int64_t start = piece * n / pieces, end = (piece + 1) * n / pieces;
        Real sum = 0;
        for (int64_t i = start + threadIdx.x; i < end; i += blockDim.x) {
            const Real difference = load(&prediction[i]) - load(&target[i]);
            sum += difference * difference;
        }
        sum = block_sum(sum);
        if (threadIdx.x == 0)
            partial[piece] = sum;
    }
}

/* One block. */
__global__ void mean_of_pieces(Real *out, const Real *partial, int64_t pieces, int64_t n)
{
    double sum = 0;
    GRID_FOR(piece, pieces)
        sum += (double)partial[piece];
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

extern "C" void mean_squared_error_forward_cuda(TensorType type, Real *out, Real *partial,
                                                const Real *prediction, const Real *target,
                                                int64_t pieces, int64_t n)
{
    BY_STORAGE(type, T,
               LAUNCH(squared_error_pieces<T>, blocks_for(pieces, 1), THREADS, 0, partial,
                      (const T *)prediction, (const T *)target, pieces, n));
    LAUNCH(mean_of_pieces, 1, THREADS, 0, out, partial, pieces, n);
}

extern "C" void mean_squared_error_backward_cuda(TensorType type, Real *dp, bool accumulate,
                                                 Real sign, const Real *dout,
                                                 const Real *prediction, const Real *target,
                                                 int64_t n)
{
    BY_STORAGE(type, T,
               LAUNCH(mean_squared_error_backward<T>, blocks_for(n), THREADS, 0, (T *)dp,
                      accumulate, sign, dout, (const T *)prediction, (const T *)target, n));
}
