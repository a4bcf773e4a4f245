#include "ops/cuda/shared/columns.cuh"
#include "ops/shared/columns.h"

/* Thread blocks with blockIdx.y = 0 compute the first sum, with 1 the second. */
__global__ void add_part_pairs_kernel(Gradient first, Gradient second, const Real *partial,
                                      int64_t parts, int64_t C, int lanes)
{
    const Gradient out = blockIdx.y == 0 ? first : second;
    const int64_t c = (int64_t)blockIdx.x * lanes + threadIdx.x % lanes;
    if (!out.data)
        return;
    const double sum = block_column_sum(partial + blockIdx.y * parts * C, 0, parts, C, c, lanes);
    if ((int)threadIdx.x < lanes && c < C)
        store_sum(&out.data[c], out.accumulate, 1, sum);
}

extern "C" void add_part_pairs_cuda(Gradient first, Gradient second, const Real *partial,
                                    int64_t parts, int64_t C)
{
    const int lanes = column_lanes(C);
    const dim3 blocks((unsigned)((C + lanes - 1) / lanes), second.data ? 2 : 1);
    LAUNCH(add_part_pairs_kernel, blocks, THREADS, 0, first, second, partial, parts, C, lanes);
}

extern "C" void column_sums_cuda(TensorType type, Real *partial, const Real *x, int64_t R,
                                 int64_t C)
{
    BY_STORAGE(type, T, launch_column_sums(partial, row_blocks(R), false, 1, (const T *)x, R, C));
}
