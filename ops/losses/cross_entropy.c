/* cross_entropy: the weighted mean over R rows of -ln softmax(logits_r) at the target t_r
 *   l_r = ln sum_c e^logits_rc     W = sum_r w_r     out = sum_r w_r (l_r - logits_r,t_r) / W
 * Backward, g = dL/dout:
 *   dl_r / dlogits_rc = e^logits_rc / sum_j e^logits_rj = e^(logits_rc - l_r) = softmax(logits_r)_c
 *   dlogits_rc <- g w_r / W (e^(logits_rc - l_r) - [c = t_r])
 * Rows of weight 0 are ignored, even if their logits are infinite or NaN.
 * Saved for the backward pass: l, two values per row (`saved`), and W, summed on the device, since
 * a replayed step has new weights that the host does not see. */
#include "ops/shared/indices.h"
#include "ops/losses/kernels.h"
#include "ops/rows/rows.h"

/* out [], saved [R] = l, weight_sum [] = W, loss [R] is scratch;
 * logits [R, C], targets [R], weights [R] or NULL */
void cross_entropy_forward_cpu(TensorType type, Real *out, LogSumExp *saved, Real *weight_sum,
                               Real *loss, const Real *logits, const int32_t *targets,
                               const Real *weights, int64_t R, int64_t C)
{
#pragma omp parallel for schedule(static) num_threads(threads_for(R *C, 0.3))
    for (int64_t r = 0; r < R; r++) {
        const Real weight = weights ? weights[r] : 1;
        BY_STORAGE(type, T, saved[r] = row_log_sum_exp(T, elements_at(T, logits, r * C), C));
        BY_STORAGE(type, T,
                   loss[r] = weight == 0
                                 ? 0
                                 : -weight * log_probability(load(T, logits, r * C + targets[r]),
                                                             saved[r]));
    }
    double sum = 0, weight = 0; /* on one thread, in order: repeatable */
    for (int64_t r = 0; r < R; r++) {
        sum += (double)loss[r];
        weight += weights ? (double)weights[r] : 1;
    }
    *out = (Real)(sum / weight);
    *weight_sum = (Real)weight;
}

/* dlogits [C] <- factor (e^(logits - l) - [c = target]), logits [C]. The loop leaves out the last
 * term. Adding it later would round bf16 twice, so the target's element is recomputed then. */
ALWAYS_INLINE void cross_entropy_row_backward(int T, Real *dlogits, bool accumulate, Real factor,
                                              const Real *logits, LogSumExp l, int64_t target,
                                              int64_t C)
{
    if (factor == 0) {
        for (int64_t c = 0; c < C; c++)
            contribute(T, dlogits, c, accumulate, 0);
        return;
    }
    const Real old = T == TENSOR_BF16 && accumulate ? load(T, dlogits, target) : 0;
#pragma omp simd
    for (int64_t c = 0; c < C; c++)
        contribute(T, dlogits, c, accumulate,
                   factor * real_exp(log_probability(load(T, logits, c), l)));
    if (T == TENSOR_BF16)
        store(T, dlogits, target,
              old + factor * (real_exp(log_probability(load(T, logits, target), l)) - 1));
    else
        dlogits[target] -= factor;
}

/* dlogits [R, C], dout [], saved [R] = l, weight_sum [] = W;
 * logits [R, C], targets [R], weights [R] or NULL */
void cross_entropy_backward_cpu(TensorType type, Real *dlogits, bool accumulate, const Real *dout,
                                const LogSumExp *saved, const Real *weight_sum, const Real *logits,
                                const int32_t *targets, const Real *weights, int64_t R, int64_t C)
{
    double scale = (double)*dout / (double)*weight_sum;
#pragma omp parallel for schedule(static) num_threads(threads_for(R *C, 0.3))
    for (int64_t r = 0; r < R; r++) {
        Real factor = (Real)((weights ? (double)weights[r] : 1) * scale);
        BY_STORAGE(type, T,
                   cross_entropy_row_backward(T, elements_at(T, dlogits, r * C), accumulate, factor,
                                              elements_at(T, logits, r * C), saved[r], targets[r],
                                              C));
    }
}

static void cross_entropy_backward(Node *node)
{
    Tensor *logits = node->inputs[0], *targets = node->inputs[1], *weights = node->inputs[2];
    Gradient dlogits = tape_contribution(node, logits);
    if (dlogits.data)
        KERNEL_CALL(logits, cross_entropy_backward,
                    (dlogits.data, dlogits.accumulate, tape_upstream(node, 0),
                     (const LogSumExp *)node->saved[0]->data, node->saved[1]->data, logits->data,
                     targets->integers, weights ? weights->data : NULL, shape_rows(logits->shape),
                     shape_columns(logits->shape)));
}

/* Raises unless each of the R weights is finite and 0 or more, and one is above 0. */
static void check_weights(Tape *tape, const Tensor *weights, int64_t R)
{
    enum { PIECE = 1 << 13 }; /* large: each copy from a device has a high latency */
    Real piece[PIECE];
    bool positive = false;
    for (int64_t start = 0; start < R; start += PIECE) {
        int64_t length = R - start < PIECE ? R - start : PIECE;
        device_copy_out(weights->device, piece, weights->data + start,
                        (size_t)length * sizeof *piece);
        for (int64_t i = 0; i < length; i++) {
            if (!(piece[i] >= 0 && piece[i] < (Real)INFINITY))
                tape_error(tape, "op_cross_entropy: weights[%lld] is %g, expected 0 or more",
                           (long long)(start + i), (double)piece[i]);
            positive |= piece[i] > 0;
        }
    }
    if (!positive)
        tape_error(tape, "op_cross_entropy: the weights of all %lld rows are 0, expected one above",
                   (long long)R);
}

static void check_cross_entropy(Tape *tape, Tensor *logits, Tensor *targets, Tensor *weights)
{
    tape_use(tape, "op_cross_entropy: logits", logits);
    if (logits->shape.rank < 1)
        tape_error(tape, "op_cross_entropy: logits is a scalar, expected one axis at least");
    tape_use_i32(tape, "op_cross_entropy: targets", targets);
    check_one_per_row(tape, "op_cross_entropy: targets", targets, logits, "logits");
    check_indices(tape, "op_cross_entropy: targets", targets, 0, shape_columns(logits->shape) - 1,
                  "the classes of logits");
    if (!weights)
        return;
    tape_use_real(tape, "op_cross_entropy: weights", weights);
    check_one_per_row(tape, "op_cross_entropy: weights", weights, logits, "logits");
    if (!device_is_capturing(weights->device))
        check_weights(tape, weights, shape_rows(logits->shape));
}

Tensor *op_cross_entropy(Tape *tape, Tensor *logits, Tensor *targets, Tensor *weights)
{
    check_cross_entropy(tape, logits, targets, weights);
    int64_t R = shape_rows(logits->shape), C = shape_columns(logits->shape);
    Tensor *out = tape_tensor(tape, shape_scalar());
    Tensor *saved = tape_tensor(tape, shape(R, 2));
    Tensor *weight_sum = tape_tensor(tape, shape_scalar());
    Tensor *loss = tape_scratch(tape, shape(R));
    KERNEL_CALL(logits, cross_entropy_forward,
                (out->data, (LogSumExp *)saved->data, weight_sum->data, loss->data, logits->data,
                 targets->integers, weights ? weights->data : NULL, R, C));
    tape_scratch_free(tape, loss);
    tape_record(tape, (Node){ "op_cross_entropy", cross_entropy_backward,
                              .inputs = { logits, targets, weights }, .outputs = { out },
                              .saved = { saved, weight_sum } });
    return out;
}
