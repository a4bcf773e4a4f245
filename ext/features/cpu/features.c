/* Polynomial and random features in bf16. */
#include "ops/cpu/shared/bf16.h"
#include "ops/kernels.h"

void polynomial_features_forward_bf16(Real *out, const Real *x, int64_t R, int64_t F, int64_t D)
{
    BF16_BLOCKS(block, R, F, 2) {
        const Real *x_rows = bf16_read(&block, x, D);
        Real *out_rows = bf16_buffer(&block, F);
        polynomial_features_forward_plain(out_rows, x_rows, block.rows, F, D);
        bf16_write(&block, out, out_rows, F);
    }
}

void polynomial_features_backward_bf16(Gradient dx, const Real *dout, const Real *x, int64_t R,
                                       int64_t F, int64_t D)
{
    BF16_BLOCKS(block, R, F, 3) {
        const Gradient dx_rows = bf16_gradient(&block, dx, D);
        const Real *dout_rows = bf16_read(&block, dout, F), *x_rows = bf16_read(&block, x, D);
        polynomial_features_backward_plain(dx_rows, dout_rows, x_rows, block.rows, F, D);
        bf16_write(&block, dx.data, dx_rows.data, D);
    }
}

void random_features_forward_bf16(Real *out, const Real *y, const Real *x, FeatureSizes s)
{
    const int64_t F = s.F, D = s.D;
    BF16_BLOCKS(block, s.R, F + D, 1) {
        const Real *x_rows = bf16_read(&block, x, D);
        Real *out_rows = bf16_buffer(&block, F);
        random_features_forward_plain(out_rows, y + block.first * F, x_rows,
                                      (FeatureSizes){ block.rows, F, D });
        bf16_write(&block, out, out_rows, F);
    }
}

void random_features_backward_bf16(Real *h, Gradient dx, const Real *dout, const Real *out,
                                   const Real *x, FeatureSizes s)
{
    const int64_t F = s.F, D = s.D;
    BF16_BLOCKS(block, s.R, 3 * F + 2 * D, 1) {
        Gradient dx_rows = { NULL, false };
        if (dx.data)
            dx_rows = bf16_gradient(&block, dx, D);
        const Real *dout_rows = bf16_read(&block, dout, F), *out_rows = bf16_read(&block, out, F);
        const Real *x_rows = bf16_read(&block, x, D);
        Real *h_rows = bf16_buffer(&block, F);
        random_features_backward_plain(h_rows, dx_rows, dout_rows, out_rows, x_rows,
                                       (FeatureSizes){ block.rows, F, D });
        bf16_write(&block, h, h_rows, F);
        if (dx.data)
            bf16_write(&block, dx.data, dx_rows.data, D);
    }
}
