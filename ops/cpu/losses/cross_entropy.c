/* cross_entropy in bf16. */
#include "ops/cpu/shared/bf16.h"
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"
#include "ops/shared/rows.h"

void cross_entropy_forward_bf16(Real *losses, LogSumExp *l, CrossEntropy in)
{
    const int64_t R = in.R, C = in.C;
    BF16_BLOCKS(block, R, C, 1) {
        const Real *logits = bf16_read(&block, in.logits, C);
        for (int64_t i = 0; i < block.rows; i++) {
            const int64_t r = block.first + i;
            l[r] = log_sum_exp(logits + i * C, C);
            losses[r] =
                weighted_loss(in.weights ? in.weights[r] : 1, logits[i * C + in.targets[r]], l[r]);
        }
    }
}

void cross_entropy_backward_bf16(Gradient dlogits, const Real *dout, const LogSumExp *l,
                                 const Real *weight_sum, CrossEntropy in)
{
    const int64_t R = in.R, C = in.C;
    BF16_BLOCKS(block, R, C, 2) {
        const Gradient d = bf16_gradient(&block, dlogits, C);
        const Real *logits = bf16_read(&block, in.logits, C);
        for (int64_t i = 0; i < block.rows; i++) {
            const int64_t r = block.first + i;
            cross_entropy_row_backward(gradient_from(d, i * C), logits + i * C, l[r], in.targets[r],
                                       cross_entropy_factor(&in, r, *dout, *weight_sum), C);
        }
        bf16_write(&block, dlogits.data, d.data, C);
    }
}
