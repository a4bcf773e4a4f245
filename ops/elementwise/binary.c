/* The binary operations on the CPU: one loop per formula and one op_NAME for each row of
 * binary_functions.h. */
#include "ops/elementwise/kernels.h"
#include "ops/elementwise/broadcast.h"

enum Side { FROM_A, FROM_B };

/* out [n] <- f(a, b), a and b broadcast */
#define FORWARD(op, f)                                                                             \
    ALWAYS_INLINE void op##_block(int T, Real *out, const Real *a, Broadcast a_view,               \
                                  const Real *b, Broadcast b_view, int64_t start, int64_t n)       \
    {                                                                                              \
        _Alignas(64) Real buffers[2][BLOCK];                                                       \
        const int64_t count = block_count(start, n);                                               \
        a = broadcast_block(T, buffers[0], a, a_view, start, count);                               \
        b = broadcast_block(T, buffers[1], b, b_view, start, count);                               \
        PRAGMA(omp simd)                                                                           \
        for (int64_t i = 0; i < count; i++)                                                        \
            store(T, out, start + i, f(load(T, a, i), load(T, b, i)));                             \
    }                                                                                              \
    BINARY_KERNEL(op)                                                                              \
    void op##_forward_cpu(TensorType type, Real *out, const Real *a, Broadcast a_view,             \
                          const Real *b, Broadcast b_view, int64_t n)                              \
    {                                                                                              \
        PARALLEL_BLOCKS(start, n)                                                                  \
            BY_STORAGE(type, T, op##_block(T, out, a, a_view, b, b_view, start, n));               \
    }

/* dx [n] <- f_gradient(dout, out, y), dout and out [n], y broadcast */
#define BACKWARD(op, side, f_gradient)                                                             \
    ALWAYS_INLINE void op##_backward_##side##_block(                                               \
        int T, Real *dx, bool accumulate, const Real *dout, const Real *out, const Real *y,        \
        Broadcast y_view, int64_t start, int64_t n)                                                \
    {                                                                                              \
        _Alignas(64) Real buffer[BLOCK];                                                           \
        const int64_t count = block_count(start, n);                                               \
        y = broadcast_block(T, buffer, y, y_view, start, count);                                   \
        PRAGMA(omp simd)                                                                           \
        for (int64_t i = 0; i < count; i++)                                                        \
            contribute(                                                                            \
                T, dx, start + i, accumulate,                                                      \
                f_gradient(load(T, dout, start + i), load(T, out, start + i), load(T, y, i)));     \
    }                                                                                              \
    BINARY_GRADIENT_KERNEL(op, side)                                                               \
    void op##_backward_##side##_cpu(TensorType type, Real *dx, bool accumulate, const Real *dout,  \
                                    const Real *out, const Real *y, Broadcast y_view, int64_t n)   \
    {                                                                                              \
        PARALLEL_BLOCKS(start, n)                                                                  \
            BY_STORAGE(                                                                            \
                type, T,                                                                           \
                op##_backward_##side##_block(T, dx, accumulate, dout, out, y, y_view, start, n));  \
    }

#define CONTRIBUTE(op, side, input, from)                                                          \
    do {                                                                                           \
        Tensor *x = node->inputs[input], *y = node->inputs[from], *out = node->outputs[0];         \
        const Broadcast view = broadcast_of(x->shape, out->shape);                                 \
        WideGradient dx = wide_gradient_begin(node, x, view);                                      \
        if (dx.data)                                                                               \
            KERNEL_CALL(x, op##_backward_##side,                                                   \
                        (dx.data, dx.accumulate, tape_upstream(node, 0), out->data, y->data,       \
                         broadcast_of(y->shape, out->shape), tensor_count(out)));                  \
        wide_gradient_end(node, x, view, dx);                                                      \
    } while (0)

#define OPERATION(op)                                                                              \
    Tensor *op_##op(Tape *tape, Tensor *a, Tensor *b)                                              \
    {                                                                                              \
        tape_use(tape, "op_" #op ": a", a);                                                        \
        tape_use(tape, "op_" #op ": b", b);                                                        \
        cast_alike(tape, &a, &b);                                                                  \
        Tensor *out = tape_tensor_of(tape, a->type, broadcast_shape(tape, "op_" #op, a, b));       \
        KERNEL_CALL(out, op##_forward,                                                             \
                    (out->data, a->data, broadcast_of(a->shape, out->shape), b->data,              \
                     broadcast_of(b->shape, out->shape), tensor_count(out)));                      \
        tape_record(tape,                                                                          \
                    (Node){ "op_" #op, op##_backward, .inputs = { a, b }, .outputs = { out } });   \
        return out;                                                                                \
    }

#define BINARY(op, f, a_gradient, a_from, b_gradient, b_from)                                      \
    FORWARD(op, f)                                                                                 \
    BACKWARD(op, a, a_gradient)                                                                    \
    BACKWARD(op, b, b_gradient)                                                                    \
    static void op##_backward(Node *node)                                                          \
    {                                                                                              \
        CONTRIBUTE(op, a, FROM_A, a_from);                                                         \
        CONTRIBUTE(op, b, FROM_B, b_from);                                                         \
    }                                                                                              \
    OPERATION(op)

/* dx <- derivative times the sum of dout over the repeats of x */
static void contribute_linear(Node *node, enum Side side, Real derivative)
{
    Tensor *x = node->inputs[side];
    Gradient dx = tape_contribution(node, x);
    if (dx.data)
        broadcast_sum(node->tape, x, dx.data, dx.accumulate, derivative, tape_upstream(node, 0),
                      broadcast_of(x->shape, node->outputs[0]->shape), false);
}

#define BINARY_LINEAR(op, f, da, db)                                                               \
    FORWARD(op, f)                                                                                 \
    static void op##_backward(Node *node)                                                          \
    {                                                                                              \
        contribute_linear(node, FROM_A, da);                                                       \
        contribute_linear(node, FROM_B, db);                                                       \
    }                                                                                              \
    OPERATION(op)

#include "ops/elementwise/binary_functions.h"
