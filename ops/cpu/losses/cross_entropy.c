/* cross_entropy in bf16. */
#include "ops/cpu/shared/bf16.h"
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"

/* A block of rows, whose logits were converted */
static CrossEntropy rows_of(CrossEntropy in, const Bf16Block *block, const Real *logits)
{
    return (CrossEntropy){ logits, in.targets + block->first,
                           in.weights ? in.weights + block->first : NULL, block->rows, in.C };
}

/* The blocks compute l; the mean is over all rows, in order. */
void cross_entropy_forward_bf16(Real *out, LogSumExp *l, Real *weight_sum, CrossEntropy in)
{
    const int64_t R = in.R, C = in.C;
    BF16_BLOCKS(block, R, C, 1) {
        Real loss, W;
        const Real *logits = bf16_read(&block, in.logits, C);
        cross_entropy_forward_plain(&loss, l + block.first, &W, rows_of(in, &block, logits));
    }
    double loss = 0, W = 0;
    for (int64_t r = 0; r < R; r++) {
        const Real w = in.weights ? in.weights[r] : 1;
        const Real logit = load(TENSOR_BF16, in.logits, r * C + in.targets[r]);
        loss -= w == 0 ? 0 : w * log_probability(logit, l[r]);
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
        cross_entropy_backward_plain(d, dout, l + block.first, weight_sum,
                                     rows_of(in, &block, logits));
        bf16_write(&block, dlogits.data, d.data, C);
    }
}
