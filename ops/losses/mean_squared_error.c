/* mean_squared_error of n elements
 *   out = sum_i (p_i - t_i)^2 / n
 * Backward, g = dL/dout:
 *   dp_i <- 2 (p_i - t_i) g / n          dt_i <- -2 (p_i - t_i) g / n */
#include "ops/losses/kernels.h"
#include "ops/shared/internal.h"

/* Elements per piece. The pieces' sums are added in order, so the result does not depend on the
 * number of threads. */
enum { PIECE = 4096 };

/* sum_i (p_i - t_i)^2, start <= i < end */
ALWAYS_INLINE Real squared_error(int T, const Real *p, const Real *t, int64_t start, int64_t end)
{
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = start; i < end; i++) {
        Real difference = load(T, p, i) - load(T, t, i);
        sum += difference * difference;
    }
    return sum;
}

/* out [], partial [pieces] is scratch; prediction [n], target [n] */
void mean_squared_error_forward_cpu(TensorType type, Real *out, Real *partial,
                                    const Real *prediction, const Real *target, int64_t pieces,
                                    int64_t n)
{
#pragma omp parallel for schedule(static) num_threads(threads_for(n, 0.1))
    for (int64_t piece = 0; piece < pieces; piece++) {
        int64_t end = (piece + 1) * PIECE < n ? (piece + 1) * PIECE : n;
        BY_STORAGE(type, T,
                   partial[piece] = squared_error(T, prediction, target, piece * PIECE, end));
    }
    double sum = 0;
    for (int64_t piece = 0; piece < pieces; piece++)
        sum += (double)partial[piece];
    *out = (Real)(sum / (double)n);
}

/* dp [n] <- sign 2 (prediction - target) dout / n */
void mean_squared_error_backward_cpu(TensorType type, Real *dp, bool accumulate, Real sign,
                                     const Real *dout, const Real *prediction, const Real *target,
                                     int64_t n)
{
    Real scale = sign * 2 * *dout / (Real)n;
    BY_STORAGE(type, T,
               PARALLEL_FOR(i, n) contribute(
                   T, dp, i, accumulate, scale * (load(T, prediction, i) - load(T, target, i))));
}

static void mean_squared_error_backward(Node *node)
{
    Tensor *prediction = node->inputs[0], *target = node->inputs[1];
    for (int i = 0; i < 2; i++) {
        Gradient gradient = tape_contribution(node, node->inputs[i]);
        if (gradient.data)
            KERNEL_CALL(prediction, mean_squared_error_backward,
                        (gradient.data, gradient.accumulate, i == 0 ? 1 : -1,
                         tape_upstream(node, 0), prediction->data, target->data,
                         tensor_count(prediction)));
    }
}

Tensor *op_mean_squared_error(Tape *tape, Tensor *prediction, Tensor *target)
{
    tape_use(tape, "op_mean_squared_error: prediction", prediction);
    tape_use(tape, "op_mean_squared_error: target", target);
    cast_alike(tape, &prediction, &target);
    if (!shape_equal(prediction->shape, target->shape))
        tape_error(tape, "op_mean_squared_error: shapes differ: prediction %s, target %s",
                   tensor_text(prediction).text, tensor_text(target).text);
    int64_t n = tensor_count(prediction), pieces = (n + PIECE - 1) / PIECE;
    Tensor *out = tape_tensor(tape, shape_scalar());
    Tensor *partial = tape_scratch(tape, shape(pieces));
    KERNEL_CALL(prediction, mean_squared_error_forward,
                (out->data, partial->data, prediction->data, target->data, pieces, n));
    tape_scratch_free(tape, partial);
    tape_record(tape, (Node){ "op_mean_squared_error", mean_squared_error_backward,
                              .inputs = { prediction, target }, .outputs = { out } });
    return out;
}
