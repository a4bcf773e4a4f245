/* out = ln x
 * Backward, g = dL/dout:
 *   dx <- g / x */
#include "ops/internal.h"

static void log_forward_cpu(Real *out, const Real *x, int64_t n)
{
    PARALLEL_FOR(i, n)
        out[i] = real_log(x[i]);
}

static void log_backward_cpu(Real *dx, bool accumulate, const Real *dout, const Real *x, int64_t n)
{
    PARALLEL_FOR(i, n)
        contribute(&dx[i], accumulate, dout[i] / x[i]);
}

static void log_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    Gradient dx = tape_contribution(node, x);
    DEVICE_CALL(x, log_backward,
                (dx.data, dx.accumulate, tape_upstream(node, 0), x->data, tensor_count(x)));
}

Tensor *op_log(Tape *tape, Tensor *x)
{
    tape_use(tape, "op_log: x", x);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    DEVICE_CALL(x, log_forward, (out->data, x->data, tensor_count(x)));
    tape_record(
        tape,
        (Node){ .name = "op_log", .backward = log_backward, .inputs = { x }, .outputs = { out } });
    return out;
}
