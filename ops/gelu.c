/* out = x P(x), with P the normal distribution function  (Hendrycks and Gimpel 2016)
 *   P(x) = (1 + erf(x / sqrt 2)) / 2     p(x) = dP/dx = e^(-x^2 / 2) / sqrt(2 pi)
 * Backward, g = dL/dout:
 *   dx <- g (P(x) + x p(x)) */
#include "ops/activation.h"
#include "ops/internal.h"

static void gelu_forward_cpu(Real *out, const Real *x, int64_t n)
{
    PARALLEL_FOR(i, n)
        out[i] = gelu(x[i]);
}

static void gelu_backward_cpu(Real *dx, bool accumulate, const Real *dout, const Real *x, int64_t n)
{
    PARALLEL_FOR(i, n)
        contribute(&dx[i], accumulate, dout[i] * gelu_slope(x[i]));
}

static void gelu_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    Gradient dx = tape_contribution(node, x);
    DEVICE_CALL(x, gelu_backward,
                (dx.data, dx.accumulate, tape_upstream(node, 0), x->data, tensor_count(x)));
}

Tensor *op_gelu(Tape *tape, Tensor *x)
{
    tape_use(tape, "op_gelu: x", x);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    DEVICE_CALL(x, gelu_forward, (out->data, x->data, tensor_count(x)));
    tape_record(tape, (Node){ .name = "op_gelu",
                              .backward = gelu_backward,
                              .inputs = { x },
                              .outputs = { out } });
    return out;
}
