#include "ops/kernels.h"
#include "ops/cuda/shared/rows.cuh"

template <typename T, int LANES>
__global__ void cross_entropy_rows(LogSumExp *saved, Real *losses, CrossEntropy in)
{
    ROW_FOR(r, in.R, LANES) {
        const T *logits = (const T *)in.logits + r * in.C;
        const LogSumExp l = log_sum_exp_of_row<LANES>(logits, in.C);
        if (threadIdx.x % LANES == 0) {
            saved[r] = l;
            losses[r] =
                weighted_loss(in.weights ? in.weights[r] : 1, load(&logits[in.targets[r]]), l);
        }
    }
}

/* One block of many threads: few elements, so load latency dominates. */
enum { MEAN_THREADS = 1024 };

__global__ void mean_of_losses(Real *out, Real *weight_sum, const Real *losses, const Real *weights,
                               int64_t R)
{
    double sum = 0, weight = 0;
    GRID_FOR(r, R) {
        sum += (double)losses[r];
        weight += weights ? (double)weights[r] : 1;
    }
    sum = block_sum(sum);
    weight = block_sum(weight);
    if (threadIdx.x == 0) {
        *out = (Real)(sum / weight);
        *weight_sum = (Real)weight;
    }
}

template <typename T, int LANES>
__global__ void cross_entropy_backward(T *dlogits, bool accumulate, const Real *dout,
                                       const LogSumExp *saved, const Real *weight_sum,
                                       CrossEntropy in)
{
    const double scale = (double)*dout / (double)*weight_sum;
    ROW_FOR(r, in.R, LANES) {
        const T *logits = (const T *)in.logits + r * in.C;
        const Real factor = (Real)((in.weights ? (double)in.weights[r] : 1) * scale);
        const LogSumExp l = saved[r];
        const int64_t target = in.targets[r];
        LANE_FOR(c, in.C, LANES) {
            const Real softmax = factor == 0 ? 0 : exp(log_probability(load(&logits[c]), l));
            contribute(&dlogits[r * in.C + c], accumulate, factor * (softmax - (c == target)));
        }
    }
}

extern "C" void cross_entropy_forward_cuda(TensorType type, Real *losses, LogSumExp *l,
                                           CrossEntropy in)
{
    BY_STORAGE(type, T, LAUNCH_ROWS(cross_entropy_rows, T, in.R, in.C, l, losses, in));
}

extern "C" void mean_of_losses_cuda(Real *out, Real *weight_sum, const Real *losses,
                                    const Real *weights, int64_t R)
{
    LAUNCH(mean_of_losses, 1, MEAN_THREADS, 0, out, weight_sum, losses, weights, R);
}

extern "C" void cross_entropy_backward_cuda(TensorType type, Gradient dlogits, const Real *dout,
                                            const LogSumExp *l, const Real *weight_sum,
                                            CrossEntropy in)
{
    BY_STORAGE(type, T,
               LAUNCH_ROWS(cross_entropy_backward, T, in.R, in.C, (T *)dlogits.data,
                           dlogits.accumulate, dout, l, weight_sum, in));
}
