/* out = factor x
 * Backward, g = dL/dout:
 *   dx <- factor g */
#include "ops/internal.h"

static void scale_forward_cpu(Real *out, const Real *x, Real factor, int64_t n)
{
    PARALLEL_FOR(i, n)
        out[i] = factor * x[i];
}

static void scale_backward_cpu(Real *dx, bool accumulate, const Real *dout, Real factor, int64_t n)
{
    PARALLEL_FOR(i, n)
        contribute(&dx[i], accumulate, factor * dout[i]);
}

static void scale_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    const Real *factor = node->saved;
    Gradient dx = tape_contribution(node, x);
    DEVICE_CALL(x, scale_backward,
                (dx.data, dx.accumulate, tape_upstream(node, 0), *factor, tensor_count(x)));
}

Tensor *op_scale(Tape *tape, Tensor *x, Real factor)
{
    tape_use(tape, "op_scale: x", x);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    DEVICE_CALL(x, scale_forward, (out->data, x->data, factor, tensor_count(x)));
    tape_record(tape, (Node){ .name = "op_scale",
                              .backward = scale_backward,
                              .inputs = { x },
                              .outputs = { out },
                              .saved = tape_save(tape, &factor, sizeof factor) });
    return out;
}
