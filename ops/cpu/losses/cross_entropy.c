/* cross_entropy in bf16. */
#include "ops/cpu/shared/bf16.h"
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"
#include "ops/shared/rows.h"

void cross_entropy_forward_bf16(Real *out, LogSumExp *l, Real *weight_sum, CrossEntropy in)
{
    const int64_t R = in.R, C = in.C;
    BF16_BLOCKS(block, R, C, 1) {
        const Real *logits = bf16_read(&block, in.logits, C);
        for (int64_t r = 0; r < block.rows; r++)
            l[block.first + r] = log_sum_exp(logits + r * C, C);
    }
    double loss = 0, W = 0;
    for (int64_t r = 0; r < R; r++) {
        const double w = in.weights ? (double)in.weights[r] : 1;
        const Real logit = load(TENSOR_BF16, in.logits, r * C + in.targets[r]);
        loss -= w == 0 ? 0 : w * (double)log_probability(logit, l[r]);
        W += w;
    }
    *out = (Real)(loss / W);
    *weight_sum = (Real)W;
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
