#include "ops/kernels.h"
#include "tensor/cuda/kernel.cuh"

__global__ void average_values(Real *to, const Real *from, Real weight, int64_t n)
{
    GRID_FOR(i, n)
        to[i] += weight * (from[i] - to[i]);
}

extern "C" void average_values_cuda(Real *to, const Real *from, Real weight, int64_t n)
{
    LAUNCH(average_values, blocks_for(n), THREADS, 0, to, from, weight, n);
}
