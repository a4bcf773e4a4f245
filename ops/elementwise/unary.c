/* The unary operations on the CPU: two loops and op_NAME for each row of unary_functions.h. */
#include "ops/elementwise/kernels.h"
#include "ops/shared/internal.h"

enum Saved { FROM_X, FROM_OUT };

/* The tensor that the gradient is computed from. */
static const Real *saved_values(const Node *node, enum Saved saved)
{
    return saved == FROM_X ? node->inputs[0]->data : node->outputs[0]->data;
}

#define UNARY(op, f, f_gradient, saved)                                                            \
    UNARY_KERNELS(op)                                                                              \
    void op##_forward_cpu(Real *out, const Real *x, int64_t n)                                     \
    {                                                                                              \
        PARALLEL_FOR(i, n)                                                                         \
            out[i] = f(x[i]);                                                                      \
    }                                                                                              \
    void op##_backward_cpu(Real *dx, bool accumulate, const Real *dout, const Real *y, int64_t n)  \
    {                                                                                              \
        PARALLEL_FOR(i, n)                                                                         \
            contribute(&dx[i], accumulate, f_gradient(dout[i], y[i]));                             \
    }                                                                                              \
    static void op##_backward(Node *node)                                                          \
    {                                                                                              \
        Tensor *x = node->inputs[0];                                                               \
        Gradient dx = tape_contribution(node, x);                                                  \
        KERNEL_CALL(x, op##_backward,                                                              \
                    (dx.data, dx.accumulate, tape_upstream(node, 0), saved_values(node, saved),    \
                     tensor_count(x)));                                                            \
    }                                                                                              \
    Tensor *op_##op(Tape *tape, Tensor *x)                                                         \
    {                                                                                              \
        tape_use(tape, "op_" #op ": x", x);                                                        \
        Tensor *out = tape_tensor_of(tape, x->type, x->shape);                                     \
        KERNEL_CALL(x, op##_forward, (out->data, x->data, tensor_count(x)));                       \
        tape_record(tape, (Node){ .name = "op_" #op,                                               \
                                  .backward = op##_backward,                                       \
                                  .inputs = { x },                                                 \
                                  .outputs = { out } });                                           \
        return out;                                                                                \
    }

#define UNARY_CONSTANTS(op, f, f_gradient)                                                         \
    UNARY_CONSTANT_KERNELS(op)                                                                     \
    void op##_forward_cpu(Real *out, const Real *x, Real c, Real d, int64_t n)                     \
    {                                                                                              \
        PARALLEL_FOR(i, n)                                                                         \
            out[i] = f(x[i], c, d);                                                                \
    }                                                                                              \
    void op##_backward_cpu(Real *dx, bool accumulate, const Real *dout, const Real *x, Real c,     \
                           Real d, int64_t n)                                                      \
    {                                                                                              \
        PARALLEL_FOR(i, n)                                                                         \
            contribute(&dx[i], accumulate, f_gradient(dout[i], x[i], c, d));                       \
    }                                                                                              \
    static void op##_backward(Node *node)                                                          \
    {                                                                                              \
        Tensor *x = node->inputs[0];                                                               \
        const Real *constants = node->attributes;                                                  \
        Gradient dx = tape_contribution(node, x);                                                  \
        KERNEL_CALL(x, op##_backward,                                                              \
                    (dx.data, dx.accumulate, tape_upstream(node, 0), x->data, constants[0],        \
                     constants[1], tensor_count(x)));                                              \
    }                                                                                              \
    static Tensor *op##_of(Tape *tape, Tensor *x, double c, double d)                              \
    {                                                                                              \
        const Real constants[] = { (Real)c, (Real)d };                                             \
        tape_use(tape, "op_" #op ": x", x);                                                        \
        Tensor *out = tape_tensor_of(tape, x->type, x->shape);                                     \
        KERNEL_CALL(x, op##_forward,                                                               \
                    (out->data, x->data, constants[0], constants[1], tensor_count(x)));            \
        tape_record(tape, (Node){ .name = "op_" #op,                                               \
                                  .backward = op##_backward,                                       \
                                  .inputs = { x },                                                 \
                                  .outputs = { out },                                              \
                                  .attributes = tape_save(tape, constants, sizeof constants) });   \
        return out;                                                                                \
    }

#include "ops/elementwise/unary_functions.h"

Tensor *op_scale(Tape *tape, Tensor *x, double factor)
{
    return scale_of(tape, x, factor, 0);
}

Tensor *op_add_scalar(Tape *tape, Tensor *x, double value)
{
    return add_scalar_of(tape, x, value, 0);
}

Tensor *op_clamp(Tape *tape, Tensor *x, double low, double high)
{
    tape_use(tape, "op_clamp: x", x);
    if (!(low <= high))
        tape_error(tape, "op_clamp: low is %g, high is %g, expected low <= high", low, high);
    return clamp_of(tape, x, low, high);
}
