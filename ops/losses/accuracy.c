/* accuracy: the weighted fraction of R rows whose target t_r is the class of the largest logit
 *   f_r = argmax_c logits_rc          out = sum_r w_r [f_r = t_r] / sum_r w_r
 * It is constant almost everywhere: no gradient flows, and no node is recorded. */
#include "ops/kernels.h"
#include "ops/shared/internal.h"

void accuracy_plain(Real *out, const int32_t *found, const int32_t *targets, const Real *weights,
                    int64_t R)
{
    double right = 0, W = 0;
    for (int64_t r = 0; r < R; r++) {
        const double w = weights ? (double)weights[r] : 1;
        right += found[r] == targets[r] ? w : 0;
        W += w;
    }
    *out = (Real)(right / W);
}

Tensor *op_accuracy(Tape *tape, Tensor *logits, Tensor *targets, Tensor *weights)
{
    op_check_classes(tape, CLASS_LABELS("op_accuracy"), logits, targets, weights);
    Tensor *found = op_argmax(tape, logits, -1), *out = tape_tensor(tape, shape_scalar());
    kernels_of(out)->accuracy(out->data, found->integers, targets->integers,
                              weights ? weights->data : NULL, tensor_count(targets));
    return out;
}
