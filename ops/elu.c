/* out = x for x > 0, e^x - 1 for x <= 0  (Clevert et al. 2016)
 * Backward, g = dL/dout; below 0 the derivative is e^x = out + 1:
 *   dx <- g where out > 0, else g (out + 1) */
#include "ops/internal.h"

static void elu_forward_cpu(Real *out, const Real *x, int64_t n)
{
    PARALLEL_FOR(i, n)
        out[i] = x[i] > 0 ? x[i] : real_expm1(x[i]);
}

static void elu_backward_cpu(Real *dx, bool accumulate, const Real *dout, const Real *out,
                             int64_t n)
{
    PARALLEL_FOR(i, n)
        contribute(&dx[i], accumulate, out[i] > 0 ? dout[i] : dout[i] * (out[i] + 1));
}

static void elu_backward(Node *node)
{
    Tensor *x = node->inputs[0], *out = node->outputs[0];
    Gradient dx = tape_contribution(node, x);
    DEVICE_CALL(x, elu_backward,
                (dx.data, dx.accumulate, tape_upstream(node, 0), out->data, tensor_count(x)));
}

Tensor *op_elu(Tape *tape, Tensor *x)
{
    tape_use(tape, "op_elu: x", x);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    DEVICE_CALL(x, elu_forward, (out->data, x->data, tensor_count(x)));
    tape_record(
        tape,
        (Node){ .name = "op_elu", .backward = elu_backward, .inputs = { x }, .outputs = { out } });
    return out;
}
