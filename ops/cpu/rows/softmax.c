/* softmax and log_softmax in bf16. */
#include "ops/cpu/shared/bf16.h"
#include "ops/kernels.h"

void softmax_forward_bf16(Real *out, const Real *x, int64_t R, int64_t C)
{
    BF16_BLOCKS(block, R, C, 2) {
        const Real *x_rows = bf16_read(&block, x, C);
        Real *out_rows = bf16_buffer(&block, C);
        softmax_forward_plain(out_rows, x_rows, block.rows, C);
        bf16_write(&block, out, out_rows, C);
    }
}

void softmax_backward_bf16(Gradient dx, const Real *dout, const Real *out, int64_t R, int64_t C)
{
    BF16_BLOCKS(block, R, C, 3) {
        const Gradient dx_rows = bf16_gradient(&block, dx, C);
        const Real *dout_rows = bf16_read(&block, dout, C), *out_rows = bf16_read(&block, out, C);
        softmax_backward_plain(dx_rows, dout_rows, out_rows, block.rows, C);
        bf16_write(&block, dx.data, dx_rows.data, C);
    }
}

void log_softmax_forward_bf16(Real *out, const Real *x, int64_t R, int64_t C)
{
    BF16_BLOCKS(block, R, C, 2) {
        const Real *x_rows = bf16_read(&block, x, C);
        Real *out_rows = bf16_buffer(&block, C);
        log_softmax_forward_plain(out_rows, x_rows, block.rows, C);
        bf16_write(&block, out, out_rows, C);
    }
}

void log_softmax_backward_bf16(Gradient dx, const Real *dout, const Real *out, int64_t R, int64_t C)
{
    BF16_BLOCKS(block, R, C, 3) {
        const Gradient dx_rows = bf16_gradient(&block, dx, C);
        const Real *dout_rows = bf16_read(&block, dout, C), *out_rows = bf16_read(&block, out, C);
        log_softmax_backward_plain(dx_rows, dout_rows, out_rows, block.rows, C);
        bf16_write(&block, dx.data, dx_rows.data, C);
    }
}
