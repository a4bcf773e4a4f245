/* cumulative_sum in bf16. */
#include "ops/cpu/shared/bf16.h"
#include "ops/kernels.h"

void cumulative_sum_bf16(Gradient out, const Real *x, bool reverse, AxisView v)
{
    const int64_t count = v.size * v.inner;
    BF16_BLOCKS(block, v.outer, count, 2) {
        const Gradient sums = bf16_gradient(&block, out, count);
        const Real *terms = bf16_read(&block, x, count);
        cumulative_sum_plain(sums, terms, reverse,
                             (AxisView){ .outer = block.rows, .size = v.size, .inner = v.inner });
        bf16_write(&block, out.data, sums.data, count);
    }
}
