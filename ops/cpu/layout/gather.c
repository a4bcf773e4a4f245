/* gather in bf16. */
#include "ops/cpu/shared/bf16.h"
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"

void gather_forward_bf16(Real *out, const Real *x, const int32_t *index, AxisView v, int64_t K)
{
    const int64_t O = v.outer, C = v.size, I = v.inner;
    EACH_ROW(o, O, K * I)
        for (int64_t k = o * K; k < (o + 1) * K; k++)
            for (int64_t i = 0; i < I; i++)
                store(TENSOR_BF16, out, k * I + i,
                      load(TENSOR_BF16, x, (o * C + index[k * I + i]) * I + i));
}

/* One term per element needs no buffer; several are added in Real and rounded once. */
void gather_backward_bf16(Real *dx, const Real *dout, const int32_t *index, AxisView v, int64_t K)
{
    const int64_t R = v.outer, C = v.size, I = v.inner;
    if (K == 1) {
        EACH_ROW(o, R, I)
            for (int64_t i = 0; i < I; i++)
                contribute(TENSOR_BF16, dx, (o * C + index[o * I + i]) * I + i, true,
                           load(TENSOR_BF16, dout, o * I + i));
        return;
    }
    BF16_BLOCKS(block, R, (C + K) * I, 1) {
        Real *dx_rows = bf16_read(&block, dx, C * I);
        const Real *dout_rows = bf16_read(&block, dout, K * I);
        gather_backward_plain(dx_rows, dout_rows, index + block.first * K * I,
                              (AxisView){ .outer = block.rows, .size = C, .inner = I }, K);
        bf16_write(&block, dx, dx_rows, C * I);
    }
}
