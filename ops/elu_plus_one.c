/* out = x + 1 for x > 0, e^x for x <= 0
 * Backward, g = dL/dout; the derivative is 1 where out > 1, else e^x = out:
 *   dx <- g min(out, 1) */
#include "ops/internal.h"

static void elu_plus_one_forward_cpu(Real *out, const Real *x, int64_t n)
{
    PARALLEL_FOR(i, n)
        out[i] = x[i] > 0 ? x[i] + 1 : real_exp(x[i]);
}

static void elu_plus_one_backward_cpu(Real *dx, bool accumulate, const Real *dout, const Real *out,
                                      int64_t n)
{
    PARALLEL_FOR(i, n)
        contribute(&dx[i], accumulate, out[i] > 1 ? dout[i] : dout[i] * out[i]);
}

static void elu_plus_one_backward(Node *node)
{
    Tensor *x = node->inputs[0], *out = node->outputs[0];
    Gradient dx = tape_contribution(node, x);
    DEVICE_CALL(x, elu_plus_one_backward,
                (dx.data, dx.accumulate, tape_upstream(node, 0), out->data, tensor_count(x)));
}

Tensor *op_elu_plus_one(Tape *tape, Tensor *x)
{
    tape_use(tape, "op_elu_plus_one: x", x);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    DEVICE_CALL(x, elu_plus_one_forward, (out->data, x->data, tensor_count(x)));
    tape_record(tape, (Node){ .name = "op_elu_plus_one",
                              .backward = elu_plus_one_backward,
                              .inputs = { x },
                              .outputs = { out } });
    return out;
}
