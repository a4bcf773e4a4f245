/* mean_squared_error of n elements
 *   out = sum_i (p_i - t_i)^2 / n
 * Backward, g = dL/dout:
 *   dp_i <- 2 (p_i - t_i) g / n          dt_i <- -2 (p_i - t_i) g / n */
#include "ops/kernels.h"
#include "ops/shared/internal.h"

void mean_squared_error_forward_plain(Real *out, const Real *p, const Real *t, int64_t n)
{
    double sum = 0;
    SUM(+, sum)
    for (int64_t i = 0; i < n; i++)
        sum += (double)(p[i] - t[i]) * (p[i] - t[i]);
    *out = (Real)(sum / (double)n);
}

void mean_squared_error_backward_plain(Gradient dx, Real sign, const Real *dout, const Real *p,
                                       const Real *t, int64_t n)
{
    const Real factor = sign * 2 * *dout / (Real)n;
    EACH(i, n)
        gradient_add(dx, i, factor * (p[i] - t[i]));
}

static void mean_squared_error_backward(Node *node)
{
    Tensor *prediction = node->inputs[0], *target = node->inputs[1];
    for (int i = 0; i < 2; i++) {
        const Gradient dx = tape_contribution(node, node->inputs[i]);
        if (dx.data)
            kernels_of(prediction)
                ->mean_squared_error_backward(dx, i == 0 ? 1 : -1, tape_upstream(node, 0),
                                              prediction->data, target->data,
                                              tensor_count(prediction));
    }
}

Tensor *op_mean_squared_error(Tape *tape, Tensor *prediction, Tensor *target)
{
    tape_use(tape, "op_mean_squared_error: prediction", prediction);
    tape_use(tape, "op_mean_squared_error: target", target);
    op_cast_alike(tape, &prediction, &target);
    if (!shape_equal(prediction->shape, target->shape))
        tape_error(tape, "op_mean_squared_error: shapes differ: prediction %s, target %s",
                   tensor_text(prediction).text, tensor_text(target).text);
    Tensor *out = tape_tensor(tape, shape_scalar());
    kernels_of(prediction)
        ->mean_squared_error_forward(out->data, prediction->data, target->data,
                                     tensor_count(prediction));
    tape_record(tape, (Node){ "op_mean_squared_error", mean_squared_error_backward,
                              .inputs = { prediction, target }, .outputs = { out } });
    return out;
}
