/* The log decay's gradient, from the states and the dots a.da and b.db of the scans. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_LOG_DECAY_GRADIENTS_CUH
#define TAPEGRAD_OPS_ATTENTION_LINEAR_LOG_DECAY_GRADIENTS_CUH

#include "ops/cuda/attention/linear/scan_arguments.cuh"

/* <S~, R~> at the beginning of a chunk of a head, where R~ is e^(l) R~ of its first position: the
 * block's sum in double */
template <typename T>
__device__ static inline double states_product(const Scans<T> &all, const Head &head, int64_t chunk)
{
    __shared__ double sums[CHUNK];
    const int64_t size = all.D * all.W, chunks = tiles_for(head.positions, CHUNK);
    const Real *S = chunk > 0             ? all.sums[0].states + (head.first + chunk - 1) * size
                    : all.sums[0].initial ? all.sums[0].initial + head.index * size
                                          : NULL;
    double sum = 0;
    if (S) {
        const Real *R = all.sums[1].states + (head.first + chunks - 1 - chunk) * size;
        for (int64_t k = threadIdx.x; k < size; k += CHUNK)
            sum += (double)S[k] * (double)R[k];
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int half = CHUNK / 2; half > 0; half /= 2) {
        if ((int)threadIdx.x < half)
            sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    return sums[0];
}

/* dl of a chunk's positions, one per thread: dl_i = dl_begin - sum_{t<i} (a_t.(Z_t dnum~_t) -
 * b_t.(R'_t v~_t)), restarting where l_t is -infinity; and 0 for masked positions */
template <typename T>
__global__ void log_decay_gradients(const __grid_constant__ Scans<T> all, Gradient dl,
                                    const Real *of_a, const Real *of_b, int64_t tiles)
{
    __shared__ double difference[CHUNK];
    __shared__ bool restarts[CHUNK];
    const int64_t N = all.scan[0].x.positions;
    const Head head = head_of_piece(all.line, (int32_t)blockIdx.x, N);
    const int64_t chunk = (int64_t)blockIdx.x - head.first, first = chunk * CHUNK;
    const int64_t length = all.lengths ? all.lengths[head.b] : head.positions;
    if (first >= head.positions)
        return;
    double sum = states_product(all, head, chunk);
    const int64_t i = first + threadIdx.x, row = (head.row + i) * all.line.H + head.h;
    const bool inside = i < head.positions, masked = i >= length;
    double d = 0;
    for (int64_t tile = 0; inside && tile < tiles; tile++)
        d += (double)of_a[tile * all.rows + row] - (double)of_b[tile * all.rows + row];
    difference[threadIdx.x] = d;
    restarts[threadIdx.x] = inside && !masked && all.log_decay[row] <= MIN_LOG_DECAY;
    __syncthreads();
    for (int t = 0; t <= (int)threadIdx.x; t++) {
        sum = restarts[t] ? 0 : sum;
        sum -= t < (int)threadIdx.x ? difference[t] : 0;
    }
    if (inside)
        contribute(dl.data + row, dl.accumulate, masked ? (Real)0 : (Real)sum);
}

#endif
