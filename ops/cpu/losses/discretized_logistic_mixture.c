/* discretized_logistic_mixture in bf16. */
#include "ops/cpu/shared/bf16.h"
#include "ops/kernels.h"

void logistic_mixture_forward_bf16(Real *out, Real *saved, const Real *parameters,
                                   const int32_t *targets, int64_t R, int64_t K)
{
    BF16_BLOCKS(block, R, 3 * K, 1) {
        const Real *rows = bf16_read(&block, parameters, 3 * K);
        for (int64_t i = 0; i < block.rows; i++) {
            const int64_t r = block.first + i;
            const MixtureSums sums = logistic_mixture_row(rows + i * 3 * K, targets[r], K);
            saved[r] = sums.A;
            saved[R + r] = sums.B;
        }
    }
    *out = logistic_mixture_mean(saved, R);
}

void logistic_mixture_backward_bf16(Gradient d, const Real *dout, const Real *saved,
                                    const Real *parameters, const int32_t *targets, int64_t R,
                                    int64_t K)
{
    BF16_BLOCKS(block, R, 3 * K, 2) {
        const Gradient d_rows = bf16_gradient(&block, d, 3 * K);
        const Real *rows = bf16_read(&block, parameters, 3 * K);
        for (int64_t i = 0; i < block.rows; i++) {
            const int64_t r = block.first + i;
            logistic_mixture_row_backward(gradient_from(d_rows, i * 3 * K), *dout / (Real)R,
                                          (MixtureSums){ saved[r], saved[R + r] }, rows + i * 3 * K,
                                          targets[r], K);
        }
        bf16_write(&block, d.data, d_rows.data, 3 * K);
    }
}
