/* Copies of rows in bf16, for concat and slice. */
#include "ops/cpu/layout/layout.h"
#include "ops/kernels.h"

void copy_rows_bf16(Gradient to, int64_t to_stride, const Real *from, int64_t from_stride,
                    int64_t rows, int64_t columns)
{
    EACH_ROW(r, rows, columns)
        contribute_run(TENSOR_BF16, to.data, r * to_stride, to.accumulate, from, r * from_stride,
                       columns);
}
