/* out = max(x, 0)^2
 * Backward, g = dL/dout:
 *   dx <- 2 x g where x > 0, else 0 */
#include "ops/activation.h"
#include "ops/internal.h"

static void squared_relu_forward_cpu(Real *out, const Real *x, int64_t n)
{
    PARALLEL_FOR(i, n)
        out[i] = relu(x[i]) * relu(x[i]);
}

static void squared_relu_backward_cpu(Real *dx, bool accumulate, const Real *dout, const Real *x,
                                      int64_t n)
{
    PARALLEL_FOR(i, n)
        contribute(&dx[i], accumulate, relu_gradient(2 * x[i] * dout[i], x[i]));
}

static void squared_relu_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    Gradient dx = tape_contribution(node, x);
    DEVICE_CALL(x, squared_relu_backward,
                (dx.data, dx.accumulate, tape_upstream(node, 0), x->data, tensor_count(x)));
}

Tensor *op_squared_relu(Tape *tape, Tensor *x)
{
    tape_use(tape, "op_squared_relu: x", x);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    DEVICE_CALL(x, squared_relu_forward, (out->data, x->data, tensor_count(x)));
    tape_record(tape, (Node){ .name = "op_squared_relu",
                              .backward = squared_relu_backward,
                              .inputs = { x },
                              .outputs = { out } });
    return out;
}
