/* out = x (1 + t) / 2, t = tanh u, u = a (x + b x^3), a = sqrt(2 / pi), b = 0.044715
 *   (the approximation of gelu by Hendrycks and Gimpel 2016)
 * Backward, g = dL/dout; dt/dx = (1 - t^2) du/dx, du/dx = a (1 + 3 b x^2):
 *   dx <- g ((1 + t) + x (1 - t^2) du/dx) / 2 */
#include "ops/activation.h"
#include "ops/internal.h"

static void gelu_tanh_forward_cpu(Real *out, const Real *x, int64_t n)
{
    PARALLEL_FOR(i, n)
        out[i] = gelu_tanh(x[i]);
}

static void gelu_tanh_backward_cpu(Real *dx, bool accumulate, const Real *dout, const Real *x,
                                   int64_t n)
{
    PARALLEL_FOR(i, n)
        contribute(&dx[i], accumulate, dout[i] * gelu_tanh_slope(x[i]));
}

static void gelu_tanh_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    Gradient dx = tape_contribution(node, x);
    DEVICE_CALL(x, gelu_tanh_backward,
                (dx.data, dx.accumulate, tape_upstream(node, 0), x->data, tensor_count(x)));
}

Tensor *op_gelu_tanh(Tape *tape, Tensor *x)
{
    tape_use(tape, "op_gelu_tanh: x", x);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    DEVICE_CALL(x, gelu_tanh_forward, (out->data, x->data, tensor_count(x)));
    tape_record(tape, (Node){ .name = "op_gelu_tanh",
                              .backward = gelu_tanh_backward,
                              .inputs = { x },
                              .outputs = { out } });
    return out;
}
