/* Polynomial and random features in bf16. */
#include "ext/features/kernels.h"
#include "ops/cpu/shared/bf16.h"

static FeatureSizes rows_of(const Bf16Block *block, FeatureSizes s)
{
    return (FeatureSizes){ block->rows, s.F, s.D };
}

static void polynomial_forward_bf16(Real *out, const Real *x, FeatureSizes s)
{
    BF16_BLOCKS(block, s.R, s.F, 2) {
        const Real *x_rows = bf16_read(&block, x, s.D);
        Real *out_rows = bf16_buffer(&block, s.F);
        polynomial_features_plain.forward(out_rows, x_rows, rows_of(&block, s));
        bf16_write(&block, out, out_rows, s.F);
    }
}

static void polynomial_backward_bf16(Gradient dx, const Real *dout, const Real *x, FeatureSizes s)
{
    BF16_BLOCKS(block, s.R, s.F, 3) {
        const Gradient dx_rows = bf16_gradient(&block, dx, s.D);
        const Real *dout_rows = bf16_read(&block, dout, s.F), *x_rows = bf16_read(&block, x, s.D);
        polynomial_features_plain.backward(dx_rows, dout_rows, x_rows, rows_of(&block, s));
        bf16_write(&block, dx.data, dx_rows.data, s.D);
    }
}

const PolynomialFeatureKernels polynomial_features_cpu_bf16 = { polynomial_forward_bf16,
                                                                polynomial_backward_bf16 };

static void random_forward_bf16(Real *out, const Real *y, const Real *x, FeatureSizes s)
{
    const int64_t F = s.F, D = s.D;
    BF16_BLOCKS(block, s.R, F + D, 1) {
        const Real *x_rows = bf16_read(&block, x, D);
        Real *out_rows = bf16_buffer(&block, F);
        random_features_plain.forward(out_rows, y + block.first * F, x_rows, rows_of(&block, s));
        bf16_write(&block, out, out_rows, F);
    }
}

static void random_backward_bf16(Real *h, Gradient dx, const Real *dout, const Real *out,
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
        random_features_plain.backward(h_rows, dx_rows, dout_rows, out_rows, x_rows,
                                       rows_of(&block, s));
        bf16_write(&block, h, h_rows, F);
        if (dx.data)
            bf16_write(&block, dx.data, dx_rows.data, D);
    }
}

const RandomFeatureKernels random_features_cpu_bf16 = { random_forward_bf16, random_backward_bf16 };
