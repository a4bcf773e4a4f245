#include "ops/columns.cuh"
#include "ops/columns.h"

extern "C" void add_parts_cuda(Real *dw, bool accumulate, const Real *partial, int64_t parts,
                               int64_t C)
{
    launch_column_sums(dw, 1, accumulate, 1, partial, parts, C);
}

extern "C" void column_sums_cuda(Real *partial, const Real *x, int64_t R, int64_t C)
{
    BY_STORAGE(T, launch_column_sums(partial, row_blocks(R), false, 1, (const T *)x, R, C));
}
