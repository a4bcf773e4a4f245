#include "ext/linear_cross_entropy/kernels.h"
#include "ops/cuda/shared/rows.cuh"

template <typename T, int LANES>
__global__ void logits_rows(Real *losses, T *h, const Real *g, const Real *W, LogitsBlock block)
{
    const double scale = quotient_or_one(g, W);
    ROW_FOR(r, block.R, LANES) {
        const Real *logits = block.logits + r * block.V;
        const int64_t target = block.targets[r];
        const Real weight = block.weights ? block.weights[r] : 1;
        const LogSumExp l = losses ? log_sum_exp_of_row<LANES>(logits, block.V) : block.l[r];
        if (losses && threadIdx.x % LANES == 0) {
            block.l[r] = l;
            losses[r] = weighted_loss(weight, logits[target], l);
        }
        if (LANES == WARP) /* h may be the logits, of which a lane reads the target's */
            __syncwarp();
        else
            __syncthreads();
        const Real factor = (Real)((double)weight * scale);
        LANE_FOR(c, h ? block.V : 0, LANES) {
            const Real softmax = factor == 0 ? 0 : exp(log_probability(logits[c], l));
            store(&h[r * block.V + c], factor * (softmax - (c == target)));
        }
    }
}

template <typename T>
__global__ void scale_sums(T *dx, bool accumulate, const Real *g, const Real *W, const Real *sums,
                           int64_t n)
{
    const Real factor = *g / *W;
    GRID_FOR(i, n)
        contribute(&dx[i], accumulate, factor * sums[i]);
}

static void rows_cuda(TensorType type, Real *losses, Real *h, const Real *g, const Real *W,
                      LogitsBlock block)
{
    BY_STORAGE(type, T, LAUNCH_ROWS(logits_rows, T, block.R, block.V, losses, (T *)h, g, W, block));
}

static void scale_cuda(TensorType type, Gradient dx, const Real *g, const Real *W, const Real *sums,
                       int64_t n)
{
    BY_STORAGE(type, T,
               LAUNCH(scale_sums<T>, blocks_for(n), THREADS, 0, (T *)dx.data, dx.accumulate, g, W,
                      sums, n));
}

template <TensorType type>
static constexpr LinearCrossEntropyKernels table = { call<rows_cuda, type>,
                                                     call<scale_cuda, type> };
const LinearCrossEntropyKernels linear_cross_entropy_cuda = table<TENSOR_REAL>;
const LinearCrossEntropyKernels linear_cross_entropy_cuda_bf16 = table<TENSOR_BF16>;
