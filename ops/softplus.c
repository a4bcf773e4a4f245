/* out = ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|), where nothing overflows
 * Backward, g = dL/dout:
 *   dx <- g e^x / (1 + e^x) = g sigmoid(x) */
#include "ops/internal.h"

static void softplus_forward_cpu(Real *out, const Real *x, int64_t n)
{
    PARALLEL_FOR(i, n)
        out[i] = (x[i] < 0 ? 0 : x[i]) + real_log1p(real_exp(x[i] < 0 ? x[i] : -x[i]));
}

static void softplus_backward_cpu(Real *dx, bool accumulate, const Real *dout, const Real *x,
                                  int64_t n)
{
    PARALLEL_FOR(i, n)
        contribute(&dx[i], accumulate, dout[i] * real_sigmoid(x[i]));
}

static void softplus_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    Gradient dx = tape_contribution(node, x);
    DEVICE_CALL(x, softplus_backward,
                (dx.data, dx.accumulate, tape_upstream(node, 0), x->data, tensor_count(x)));
}

Tensor *op_softplus(Tape *tape, Tensor *x)
{
    tape_use(tape, "op_softplus: x", x);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    DEVICE_CALL(x, softplus_forward, (out->data, x->data, tensor_count(x)));
    tape_record(tape, (Node){ .name = "op_softplus",
                              .backward = softplus_backward,
                              .inputs = { x },
                              .outputs = { out } });
    return out;
}
