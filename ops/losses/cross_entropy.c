/* cross_entropy: the weighted mean over R rows of -ln softmax(logits_r) at the target t_r
 * Since -ln (e^x_t / sum_c e^x_c) = ln sum_c e^x_c - x_t,
 *   l_r = ln sum_c e^logits_rc     W = sum_r w_r     out = sum_r w_r (l_r - logits_r,t_r) / W
 * Backward, g = dL/dout:
 *   dl_r / dlogits_rc = e^logits_rc / sum_j e^logits_rj = e^(logits_rc - l_r) = softmax(logits_r)_c
 *   dlogits_rc <- g w_r / W (e^(logits_rc - l_r) - [c = t_r])
 * Rows of weight 0 are ignored, even if their logits are infinite or NaN.
 * Saved for the backward pass: l, two values per row (`saved`), and W, summed on the device, since
 * a replayed step has new weights that the host does not see. */
#include "ops/kernels.h"
#include "ops/shared/rows.h"

void cross_entropy_row_backward(Gradient dlogits, const Real *logits, LogSumExp l, int32_t target,
                                Real factor, int64_t C)
{
    PRAGMA(omp simd)
    for (int64_t c = 0; c < C; c++)
        gradient_add(dlogits, c,
                     factor == 0 ? 0 : factor * real_exp(log_probability(logits[c], l)));
    dlogits.data[target] -= factor;
}

void cross_entropy_forward_plain(Real *losses, LogSumExp *l, CrossEntropy in)
{
    const int64_t C = in.C;
    EACH_ROW(r, in.R, C) {
        const Real *logits = in.logits + r * C;
        l[r] = log_sum_exp(logits, C);
        losses[r] = weighted_loss(in.weights ? in.weights[r] : 1, logits[in.targets[r]], l[r]);
    }
}

void mean_of_losses_plain(Real *out, Real *weight_sum, const Real *losses, const Real *weights,
                          int64_t R)
{
    double sum = 0, W = 0; /* on one thread, in order: repeatable */
    for (int64_t r = 0; r < R; r++) {
        sum += (double)losses[r];
        W += weights ? (double)weights[r] : 1;
    }
    *out = (Real)(sum / W);
    *weight_sum = (Real)W;
}

void cross_entropy_backward_plain(Gradient dlogits, const Real *dout, const LogSumExp *l,
                                  const Real *weight_sum, CrossEntropy in)
{
    const int64_t C = in.C;
    EACH_ROW(r, in.R, C)
        cross_entropy_row_backward(gradient_from(dlogits, r * C), in.logits + r * C, l[r],
                                   in.targets[r], cross_entropy_factor(&in, r, *dout, *weight_sum),
                                   C);
}

static CrossEntropy cross_entropy_of(const Tensor *logits, const Tensor *targets,
                                     const Tensor *weights)
{
    return (CrossEntropy){ logits->data, targets->integers, weights ? weights->data : NULL,
                           shape_rows(logits->shape), shape_columns(logits->shape) };
}

static void cross_entropy_backward(Node *node)
{
    Tensor *logits = node->inputs[0], *targets = node->inputs[1], *weights = node->inputs[2];
    const Gradient dlogits = tape_contribution(node, logits);
    if (dlogits.data)
        kernels_of(logits)->cross_entropy_backward(
            dlogits, tape_upstream(node, 0), (const LogSumExp *)node->saved[0]->data,
            node->saved[1]->data, cross_entropy_of(logits, targets, weights));
}

Tensor *op_cross_entropy(Tape *tape, Tensor *logits, Tensor *targets, Tensor *weights)
{
    if (op_check_classes(tape, CLASS_LABELS("op_cross_entropy"), logits, targets, weights))
        tape_error(tape, "op_cross_entropy: the weights of all %lld rows are 0, expected one above",
                   (long long)tensor_count(weights));
    const CrossEntropy in = cross_entropy_of(logits, targets, weights);
    Tensor *out = tape_tensor(tape, shape_scalar());
    Tensor *weight_sum = tape_tensor(tape, shape_scalar());
    Tensor *saved = tape_tensor(tape, shape(in.R, 2));
    Tensor *losses = tape_tensor(tape, shape(in.R));
    kernels_of(logits)->cross_entropy_forward(losses->data, (LogSumExp *)saved->data, in);
    kernels_of(losses)->mean_of_losses(out->data, weight_sum->data, losses->data, in.weights, in.R);
    tape_scratch_free(tape, losses);
    tape_record(tape, (Node){ "op_cross_entropy", cross_entropy_backward,
                              .inputs = { logits, targets, weights }, .outputs = { out },
                              .saved = { saved, weight_sum } });
    return out;
}
