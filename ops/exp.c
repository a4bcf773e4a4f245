/* out = e^x
 * Backward, g = dL/dout:
 *   dx <- g e^x = g out */
#include "ops/internal.h"

static void exp_forward_cpu(Real *out, const Real *x, int64_t n)
{
    PARALLEL_FOR(i, n)
        out[i] = real_exp(x[i]);
}

static void exp_backward_cpu(Real *dx, bool accumulate, const Real *dout, const Real *out,
                             int64_t n)
{
    PARALLEL_FOR(i, n)
        contribute(&dx[i], accumulate, dout[i] * out[i]);
}

static void exp_backward(Node *node)
{
    Tensor *x = node->inputs[0], *out = node->outputs[0];
    Gradient dx = tape_contribution(node, x);
    DEVICE_CALL(x, exp_backward,
                (dx.data, dx.accumulate, tape_upstream(node, 0), out->data, tensor_count(x)));
}

Tensor *op_exp(Tape *tape, Tensor *x)
{
    tape_use(tape, "op_exp: x", x);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    DEVICE_CALL(x, exp_forward, (out->data, x->data, tensor_count(x)));
    tape_record(
        tape,
        (Node){ .name = "op_exp", .backward = exp_backward, .inputs = { x }, .outputs = { out } });
    return out;
}
