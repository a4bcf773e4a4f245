#include "ops/shared/integers.h"
#include "ops/kernels.h"
#include "tensor/cuda/kernel.cuh"

__global__ void copy_integers(int32_t *to, const int32_t *from, IntegerCopy copy, int64_t count)
{
    GRID_FOR(e, count) {
        const IntegerPlaces places = integer_places(&copy, e);
        to[places.to] = from[places.from];
    }
}

extern "C" void copy_integers_cuda(int32_t *to, const int32_t *from, IntegerCopy copy)
{
    const int64_t count = shape_count(copy.shape);
    LAUNCH(copy_integers, blocks_for(count), THREADS, 0, to, from, copy, count);
}
