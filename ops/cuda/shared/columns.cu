#include "ops/cuda/shared/columns.cuh"
#include "ops/kernels.h"
#include "ops/shared/columns.h"
#include "tensor/internal.h"

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

void add_part_pairs(Gradient first, Gradient second, const Real *partial, int64_t parts, int64_t C)
{
    const int lanes = column_lanes(C);
    const dim3 blocks((unsigned)((C + lanes - 1) / lanes), second.data ? 2 : 1);
    if (first.data || second.data)
        LAUNCH(add_part_pairs_kernel, blocks, THREADS, 0, first, second, partial, parts, C, lanes);
}

extern "C" void column_sums_cuda(TensorType type, Gradient sums, const Real *x, int64_t R,
                                 int64_t C)
{
    enum { FEW = 64 }; /* rows that one launch sums */
    if (type == TENSOR_REAL && R <= FEW) {
        add_part_pairs(sums, { NULL, false }, x, R, C);
        return;
    }
    const int64_t parts = row_blocks(R);
    Real *partial = device_workspace(parts * C);
    BY_STORAGE(type, T, launch_column_sums(partial, parts, false, 1, (const T *)x, R, C));
    add_part_pairs(sums, { NULL, false }, partial, parts, C);
    device_workspace_free(partial);
}
