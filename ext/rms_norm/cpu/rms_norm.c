/* rms_norm in bf16, and its gradients in both dtypes. As in layernorm, each block of rows has its
 * own sum of dweight; the blocks depend on R alone. */
#include "ext/rms_norm/kernels.h"
#include "ops/cpu/shared/bf16.h"
#include "ops/cpu/shared/columns.h"
#include "ops/cpu/shared/storage.h"

static void rms_norm_forward_bf16(Real *out, RmsNormArguments norm)
{
    BF16_BLOCKS(block, norm.R, norm.C, 2) {
        RmsNormArguments rows = norm;
        rows.x = bf16_read(&block, norm.x, norm.C);
        rows.r += block.first;
        rows.R = block.rows;
        Real *out_rows = bf16_buffer(&block, norm.C);
        rms_norm_forward_plain(out_rows, rows);
        bf16_write(&block, out, out_rows, norm.C);
    }
}

/* The gradients of block i of the rows: dx, unless its data is NULL, and sum [C], its part of
 * dweight, unless NULL. A call with the constant NULL as weight, for ones, has loops that do not
 * test it per element. */
ALWAYS_INLINE void rms_norm_block_backward(int T, const Real *weight, Gradient dx, Real *sum,
                                           const Real *dout, const RmsNormArguments *norm,
                                           int64_t i)
{
    const int64_t C = norm->C, end = sum_block_start(i + 1, norm->R);
    if (sum)
        memset(sum, 0, (size_t)C * sizeof *sum);
    for (int64_t row = sum_block_start(i, norm->R); row < end; row++) {
        const Real *g = elements_at(T, dout, row * C), *x = elements_at(T, norm->x, row * C);
        const Real r = norm->r[row];
#pragma omp simd
        for (int64_t c = 0; c < (sum ? C : 0); c++)
            sum[c] += load(T, g, c) * load(T, x, c) * r;
        if (!dx.data)
            continue;
        Real *dx_row = elements_at(T, dx.data, row * C), sum_hn = 0;
#pragma omp simd reduction(+ : sum_hn)
        for (int64_t c = 0; c < C; c++)
            sum_hn += load(T, g, c) * weight_or_one(weight, c) * load(T, x, c) * r;
        const Real s_hn = norm->s * sum_hn;
#pragma omp simd
        for (int64_t c = 0; c < C; c++) {
            const Real n = load(T, x, c) * r, h = load(T, g, c) * weight_or_one(weight, c);
            contribute(T, dx_row, c, dx.accumulate, r * (h - n * s_hn));
        }
    }
}

static void rms_norm_backward_as(TensorType type, Gradient dx, Gradient dweight, const Real *dout,
                                 const RmsNormArguments *norm)
{
    const int64_t blocks = sum_blocks(norm->R), C = norm->C;
    Real *partial = dweight.data ? device_workspace(blocks * C) : NULL;
#pragma omp parallel for schedule(static) num_threads(device_threads_for(norm->R *C, 0.3))
    for (int64_t i = 0; i < blocks; i++) {
        Real *sum = partial ? partial + i * C : NULL;
        if (norm->weight)
            BY_STORAGE(type, T, rms_norm_block_backward(T, norm->weight, dx, sum, dout, norm, i));
        else
            BY_STORAGE(type, T, rms_norm_block_backward(T, NULL, dx, sum, dout, norm, i));
    }
    add_blocks(dweight, partial, blocks, C);
    device_workspace_free(partial);
}

static void rms_norm_backward_cpu(Gradient dx, Gradient dweight, const Real *dout,
                                  RmsNormArguments norm)
{
    rms_norm_backward_as(TENSOR_REAL, dx, dweight, dout, &norm);
}

static void rms_norm_backward_bf16(Gradient dx, Gradient dweight, const Real *dout,
                                   RmsNormArguments norm)
{
    rms_norm_backward_as(TENSOR_BF16, dx, dweight, dout, &norm);
}

const RmsNormKernels rms_norm_cpu = { rms_norm_forward_plain, rms_norm_backward_cpu };
const RmsNormKernels rms_norm_cpu_bf16 = { rms_norm_forward_bf16, rms_norm_backward_bf16 };
