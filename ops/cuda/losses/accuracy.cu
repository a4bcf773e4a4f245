#include "ops/kernels.h"
#include "tensor/cuda/kernel.cuh"

/* One block. */
__global__ void accuracy(Real *out, const int32_t *found, const int32_t *targets,
                         const Real *weights, int64_t R)
{
    double right = 0, sum = 0;
    GRID_FOR(r, R) {
        const double w = weights ? (double)weights[r] : 1;
        right += found[r] == targets[r] ? w : 0;
        sum += w;
    }
    right = block_sum(right);
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *out = (Real)(right / sum);
}

extern "C" void accuracy_cuda(Real *out, const int32_t *found, const int32_t *targets,
                              const Real *weights, int64_t R)
{
    LAUNCH(accuracy, 1, THREADS, 0, out, found, targets, weights, R);
}
