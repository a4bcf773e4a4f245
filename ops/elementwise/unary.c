/* The unary operations on the CPU: two loops and op_NAME for each row of unary_functions.h. */
#include "ops/elementwise/kernels.h"
#include "ops/shared/internal.h"

enum Saved { FROM_X, FROM_OUT };

/* The tensor that the gradient is computed from. */
static const Real *saved_values(const Node *node, enum Saved saved)
{
    return saved == FROM_X ? node->inputs[0]->data : node->outputs[0]->data;
}

/* value is an expression of element i of x, dx_value one of element i of dout and y, where y is x
 * or out; both may have the constants c and d, the node's attributes. */
#define ROW(op, value, dx_value, saved)                                                            \
    UNARY_KERNELS(op)                                                                              \
    void op##_forward_cpu(TensorType type, Real *out, const Real *x, Real c, Real d, int64_t n)    \
    {                                                                                              \
        (void)c, (void)d;                                                                          \
        BY_STORAGE(type, T, PARALLEL_FOR(i, n) store(T, out, i, value));                           \
    }                                                                                              \
    void op##_backward_cpu(TensorType type, Real *dx, bool accumulate, const Real *dout,           \
                           const Real *y, Real c, Real d, int64_t n)                               \
    {                                                                                              \
        (void)c, (void)d;                                                                          \
        BY_STORAGE(type, T, PARALLEL_FOR(i, n) contribute(T, dx, i, accumulate, dx_value));        \
    }                                                                                              \
    static void op##_backward(Node *node)                                                          \
    {                                                                                              \
        Tensor *x = node->inputs[0];                                                               \
        const Real *constants = node->attributes;                                                  \
        Gradient dx = tape_contribution(node, x);                                                  \
        KERNEL_CALL(x, op##_backward,                                                              \
                    (dx.data, dx.accumulate, tape_upstream(node, 0), saved_values(node, saved),    \
                     constants[0], constants[1], tensor_count(x)));                                \
    }                                                                                              \
    static Tensor *op##_of(Tape *tape, Tensor *x, double c, double d)                              \
    {                                                                                              \
        const Real constants[] = { (Real)c, (Real)d };                                             \
        tape_use(tape, "op_" #op ": x", x);                                                        \
        Tensor *out = tape_tensor_of(tape, x->type, x->shape);                                     \
        KERNEL_CALL(x, op##_forward,                                                               \
                    (out->data, x->data, constants[0], constants[1], tensor_count(x)));            \
        tape_record(tape, (Node){ "op_" #op, op##_backward, .inputs = { x }, .outputs = { out },   \
                                  .attributes = tape_save(tape, constants, sizeof constants) });   \
        return out;                                                                                \
    }

#define UNARY(op, f, f_gradient, saved)                                                            \
    ROW(op, f(load(T, x, i)), f_gradient(load(T, dout, i), load(T, y, i)), saved)                  \
    Tensor *op_##op(Tape *tape, Tensor *x)                                                         \
    {                                                                                              \
        return op##_of(tape, x, 0, 0);                                                             \
    }
#define UNARY_CONSTANTS(op, f, f_gradient)                                                         \
    ROW(op, f(load(T, x, i), c, d), f_gradient(load(T, dout, i), load(T, y, i), c, d), FROM_X)

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
