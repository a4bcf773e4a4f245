/* out = tanh x
 * Backward, g = dL/dout:
 *   dx <- g (1 - tanh^2 x) = g (1 - out^2) */
#include "ops/internal.h"

static void tanh_forward_cpu(Real *out, const Real *x, int64_t n)
{
    PARALLEL_FOR(i, n)
        out[i] = real_tanh(x[i]);
}

static void tanh_backward_cpu(Real *dx, bool accumulate, const Real *dout, const Real *out,
                              int64_t n)
{
    PARALLEL_FOR(i, n)
        contribute(&dx[i], accumulate, dout[i] * (1 - out[i] * out[i]));
}

static void tanh_backward(Node *node)
{
    Tensor *x = node->inputs[0], *out = node->outputs[0];
    Gradient dx = tape_contribution(node, x);
    DEVICE_CALL(x, tanh_backward,
                (dx.data, dx.accumulate, tape_upstream(node, 0), out->data, tensor_count(x)));
}

Tensor *op_tanh(Tape *tape, Tensor *x)
{
    tape_use(tape, "op_tanh: x", x);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    DEVICE_CALL(x, tanh_forward, (out->data, x->data, tensor_count(x)));
    tape_record(tape, (Node){ .name = "op_tanh",
                              .backward = tanh_backward,
                              .inputs = { x },
                              .outputs = { out } });
    return out;
}
