/* rotary in bf16. */
#include "ops/cpu/shared/bf16.h"
#include "ops/kernels.h"

void rotary_bf16(Gradient out, const Real *x, const Real *cos_sin, Rotary r)
{
    const int64_t C = r.H * r.D;
    BF16_BLOCKS(block, r.R, C, 2) {
        const Gradient out_rows = bf16_gradient(&block, out, C);
        Rotary rows = r;
        rows.R = block.rows;
        rows.first = block.first;
        rotary_plain(out_rows, bf16_read(&block, x, C), cos_sin, rows);
        bf16_write(&block, out.data, out_rows.data, C);
    }
}
