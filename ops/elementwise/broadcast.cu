#include "ops/elementwise/kernels.h"
#include "ops/shared/columns.cuh"
#include "ops/shared/map.cuh"

static int64_t repeat_parts(int64_t rows, int64_t columns)
{
    return sum_parts(rows, columns, column_lanes(columns));
}

extern "C" int64_t sum_repeats_scratch_cuda(int64_t rows, int64_t columns)
{
    return sum_scratch(repeat_parts(rows, columns), columns);
}

template <typename T>
static void launch_sum_repeats(T *out, bool accumulate, Real factor, PartialSum *partial,
                               const T *x, int64_t rows, int64_t columns)
{
    const int64_t parts = repeat_parts(rows, columns);
    if (parts == 1) {
        launch_column_sums(out, 1, accumulate, factor, x, rows, columns);
    } else {
        launch_column_sums(partial, parts, false, 1, x, rows, columns);
        launch_column_sums(out, 1, accumulate, factor, (const PartialSum *)partial, parts, columns);
    }
}

extern "C" void sum_repeats_cuda(TensorType type, Real *out, bool accumulate, Real factor,
                                 Real *scratch, const Real *x, int64_t rows, int64_t columns)
{
    if (rows == 1)
        map(type, ScaleBy{ factor }, out, accumulate, columns, x);
    else
        BY_STORAGE(type, T,
                   launch_sum_repeats((T *)out, accumulate, factor, (PartialSum *)scratch,
                                      (const T *)x, rows, columns));
}
