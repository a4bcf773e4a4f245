#include "nn/internal.h"
#include "ops/kernels.h"
#include "tensor/cuda/kernel.cuh"

/* One partial sum per block. Blocks are few and large, because every block of the second kernel
 * reads all partial sums. */
enum { PART_THREADS = 1024, SMALL_PART = 4 * PART_THREADS };

static unsigned parts_of(int64_t n)
{
    const unsigned parts = blocks_for(n, SMALL_PART);
    return parts < CLIP_PARTS ? parts : (unsigned)CLIP_PARTS;
}

__global__ void __launch_bounds__(PART_THREADS)
    sum_squares(Clipping *clipping, const Real *x, int64_t n)
{
    double sum = 0;
    GRID_FOR(i, n)
        sum += (double)x[i] * (double)x[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        clipping->parts[blockIdx.x] = sum;
    if (blockIdx.x == 0 && threadIdx.x >= gridDim.x && threadIdx.x < CLIP_PARTS)
        clipping->parts[threadIdx.x] = 0;
}

__global__ void clip_gradients(Real *x, Clipping *clipping, unsigned parts, Real max_norm,
                               int64_t n)
{
    double sum = 0;
    for (unsigned part = threadIdx.x; part < parts; part += blockDim.x)
        sum += clipping->parts[part];
    const double norm = sqrt(block_sum(sum));
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        clipping->norm = norm;
        clipping->done = true;
    }
    if (!(isfinite(norm) && norm > (double)max_norm))
        return;
    const Real factor = (Real)((double)max_norm / norm);
    GRID_FOR(i, n)
        x[i] *= factor;
}

extern "C" void sum_squares_cuda(Clipping *clipping, const Real *x, int64_t n)
{
    LAUNCH(sum_squares, parts_of(n), PART_THREADS, 0, clipping, x, n);
}

extern "C" void clip_gradients_cuda(Real *x, Clipping *clipping, Real max_norm, int64_t n)
{
    LAUNCH(clip_gradients, blocks_for(n), THREADS, 0, x, clipping, parts_of(n), max_norm, n);
}
