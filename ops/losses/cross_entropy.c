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

void cross_entropy_forward_plain(Real *out, LogSumExp *l, Real *weight_sum, CrossEntropy in)
{
    const int64_t R = in.R, C = in.C;
    EACH_ROW(r, R, C)
        l[r] = log_sum_exp(in.logits + r * C, C);
    double loss = 0, W = 0; /* on one thread, in order: repeatable */
    for (int64_t r = 0; r < R; r++) {
        const double w = in.weights ? (double)in.weights[r] : 1;
        const Real logit = in.logits[r * C + in.targets[r]];
        loss -= w == 0 ? 0 : w * (double)log_probability(logit, l[r]);
        W += w;
    }
    *out = (Real)(loss / W);
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
    Tensor *out = tape_tensor(tape, shape_scalar());
    Tensor *saved = tape_tensor(tape, shape(shape_rows(logits->shape), 2));
    Tensor *weight_sum = tape_tensor(tape, shape_scalar());
    kernels_of(logits)->cross_entropy_forward(out->data, (LogSumExp *)saved->data, weight_sum->data,
                                              cross_entropy_of(logits, targets, weights));
    tape_record(tape, (Node){ "op_cross_entropy", cross_entropy_backward,
                              .inputs = { logits, targets, weights }, .outputs = { out },
                              .saved = { saved, weight_sum } });
    return out;
}
