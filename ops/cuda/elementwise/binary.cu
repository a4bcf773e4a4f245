/* The binary operations on CUDA: one kernel per row of binary_functions.h, formula and dtype. If a
 * gradient ignores out, the compiler drops its load. */
#include "ops/cuda/elementwise/broadcast.cuh"
#include "ops/kernels.h"

#define FORWARD(op, value)                                                                         \
    struct op##_of {                                                                               \
        __device__ Real operator()(Real a, Real b) const                                           \
        {                                                                                          \
            return value;                                                                          \
        }                                                                                          \
    };
#define GRADIENT(op, side, gradient, read)                                                         \
    struct op##_gradient_of_##side {                                                               \
        __device__ Real operator()(Real dout, Real out, Real read) const                           \
        {                                                                                          \
            return (void)out, gradient;                                                            \
        }                                                                                          \
    };
#define FUNCTORS(op, value, da, a_reads, db, b_reads)                                              \
    FORWARD(op, value)                                                                             \
    GRADIENT(op, a, da, a_reads)                                                                   \
    GRADIENT(op, b, db, b_reads)
#define LINEAR_FUNCTORS(op, value, da, db) FORWARD(op, value)
BINARY_ROWS(FUNCTORS, LINEAR_FUNCTORS, FORWARD)

template <typename F>
static void map_forward(TensorType type, F f, Real *out, const Real *a, Broadcast a_view,
                        const Real *b, Broadcast b_view, int64_t n)
{
    if (broadcast_of_whole(a_view) && broadcast_of_whole(b_view))
        map(type, f, out, false, n, Repeated{ a, a_view.Q }, Repeated{ b, b_view.Q });
    else
        map(type, f, out, false, n, Broadcasted{ a, a_view }, Broadcasted{ b, b_view });
}

extern "C" void binary_forward_cuda(TensorType type, BinaryFunction f, Real *out, const Real *a,
                                    Broadcast a_view, const Real *b, Broadcast b_view, int64_t n)
{
    switch (f) {
#define CASE(op, ...)                                                                              \
    case BINARY_##op:                                                                              \
        return map_forward(type, op##_of(), out, a, a_view, b, b_view, n);
        BINARY_ROWS(CASE, CASE, CASE)
#undef CASE
    }
}

template <typename F>
static void map_backward(TensorType type, F f, Gradient dx, const Real *dout, const Real *out,
                         const Real *read, Broadcast view)
{
    const int64_t n = broadcast_count(view);
    if (broadcast_of_whole(view))
        map(type, f, dx.data, dx.accumulate, n, dout, out, Repeated{ read, view.Q });
    else
        map(type, f, dx.data, dx.accumulate, n, dout, out, Broadcasted{ read, view });
}

extern "C" void binary_backward_cuda(TensorType type, BinaryFunction f, int side, Gradient dx,
                                     const Real *dout, const Real *out, const Real *read,
                                     Broadcast view)
{
    switch (f) {
#define CASE(op, ...)                                                                              \
    case BINARY_##op:                                                                              \
        return side == 0 ? map_backward(type, op##_gradient_of_a(), dx, dout, out, read, view)     \
                         : map_backward(type, op##_gradient_of_b(), dx, dout, out, read, view);
#define NO_KERNEL(op, ...) case BINARY_##op:
        BINARY_ROWS(CASE, NO_KERNEL, NO_KERNEL)
        break; /* gradients of linear rows are sums, steps have none */
#undef CASE
    }
}
