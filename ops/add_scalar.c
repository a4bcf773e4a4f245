/* out = x + value
 * Backward, g = dL/dout:
 *   dx <- g */
#include "ops/internal.h"

static void add_scalar_forward_cpu(Real *out, const Real *x, Real value, int64_t n)
{
    PARALLEL_FOR(i, n)
        out[i] = x[i] + value;
}

static void add_scalar_backward_cpu(Real *dx, bool accumulate, const Real *dout, int64_t n)
{
    PARALLEL_FOR(i, n)
        contribute(&dx[i], accumulate, dout[i]);
}

static void add_scalar_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    Gradient dx = tape_contribution(node, x);
    DEVICE_CALL(x, add_scalar_backward,
                (dx.data, dx.accumulate, tape_upstream(node, 0), tensor_count(x)));
}

Tensor *op_add_scalar(Tape *tape, Tensor *x, Real value)
{
    tape_use(tape, "op_add_scalar: x", x);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    DEVICE_CALL(x, add_scalar_forward, (out->data, x->data, value, tensor_count(x)));
    tape_record(tape, (Node){ .name = "op_add_scalar",
                              .backward = add_scalar_backward,
                              .inputs = { x },
                              .outputs = { out } });
    return out;
}
