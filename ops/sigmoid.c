/* out = s(x) = 1 / (1 + e^-x)
 * Backward, g = dL/dout; ds/dx = e^-x / (1 + e^-x)^2 = s (1 - s):
 *   dx <- g out (1 - out) */
#include "ops/internal.h"

static void sigmoid_forward_cpu(Real *out, const Real *x, int64_t n)
{
    PARALLEL_FOR(i, n)
        out[i] = real_sigmoid(x[i]);
}

static void sigmoid_backward_cpu(Real *dx, bool accumulate, const Real *dout, const Real *out,
                                 int64_t n)
{
    PARALLEL_FOR(i, n)
        contribute(&dx[i], accumulate, dout[i] * out[i] * (1 - out[i]));
}

static void sigmoid_backward(Node *node)
{
    Tensor *x = node->inputs[0], *out = node->outputs[0];
    Gradient dx = tape_contribution(node, x);
    DEVICE_CALL(x, sigmoid_backward,
                (dx.data, dx.accumulate, tape_upstream(node, 0), out->data, tensor_count(x)));
}

Tensor *op_sigmoid(Tape *tape, Tensor *x)
{
    tape_use(tape, "op_sigmoid: x", x);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    DEVICE_CALL(x, sigmoid_forward, (out->data, x->data, tensor_count(x)));
    tape_record(tape, (Node){ .name = "op_sigmoid",
                              .backward = sigmoid_backward,
                              .inputs = { x },
                              .outputs = { out } });
    return out;
}
