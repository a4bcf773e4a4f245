/* The unary operations in bf16. */
#include "ops/cpu/shared/bf16.h"
#include "ops/elementwise/elementwise.h"
#include "ops/kernels.h"

void unary_forward_bf16(UnaryFunction f, Real *out, const Real *x, Constants k, int64_t n)
{
    BF16_BLOCKS(block, n, 1, 2) {
        const Real *x_block = bf16_read(&block, x, 1);
        Real *out_block = bf16_buffer(&block, 1);
        unary_loops(f).forward(out_block, x_block, k, block.rows);
        bf16_write(&block, out, out_block, 1);
    }
}

void unary_backward_bf16(UnaryFunction f, Gradient dx, const Real *dout, const Real *read,
                         Constants k, int64_t n)
{
    BF16_BLOCKS(block, n, 1, 3) {
        const Gradient dx_block = bf16_gradient(&block, dx, 1);
        const Real *dout_block = bf16_read(&block, dout, 1);
        const Real *read_block = bf16_read(&block, read, 1);
        unary_loops(f).backward(dx_block, dout_block, read_block, k, block.rows);
        bf16_write(&block, dx.data, dx_block.data, 1);
    }
}
