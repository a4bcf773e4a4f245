/* Broadcasting, and its gradient, the sum over repeated elements. */
#ifndef TAPEGRAD_OPS_ELEMENTWISE_BROADCAST_H
#define TAPEGRAD_OPS_ELEMENTWISE_BROADCAST_H

#include "ops/elementwise/broadcast_view.h"
#include "ops/shared/internal.h"

/* The shape of a op b: aligned at the last axis, sizes are equal, or one of them is 1 or missing.
 * Raises otherwise. */
Shape broadcast_shape(Tape *tape, const char *operation, const Tensor *a, const Tensor *b);

/* The view of x's repetition to the shape out, which x fits. */
Broadcast broadcast_of(Shape x, Shape out);

/* Kernels process out in blocks, on all threads. Their buffers are aligned to cache lines, so that
 * no vector load crosses one. */
enum { BLOCK = 1024 };

#define PARALLEL_BLOCKS(start, n)                                                                  \
    PRAGMA(omp parallel for schedule(static) num_threads(threads_for(n, 0.3)))                     \
    for (int64_t start = 0; start < (n); start += BLOCK)

static inline int64_t block_count(int64_t start, int64_t n)
{
    return n - start < BLOCK ? n - start : BLOCK;
}

/* Elements start, ..., start + count - 1 of out, in the dtype of x: returned in place if they are
 * contiguous in x; otherwise written to buffer: x [Q] repeated as a whole, or broadcast in another
 * way. */
const Real *repeat_into(int T, Real *buffer, const Real *x, int64_t Q, int64_t first,
                        int64_t count);
const Real *broadcast_into(int type, Real *buffer, const Real *x, Broadcast b, int64_t start,
                           int64_t count);
ALWAYS_INLINE const Real *broadcast_block(int T, Real *buffer, const Real *x, Broadcast b,
                                          int64_t start, int64_t count)
{
    if (!broadcast_of_whole(b))
        return broadcast_into(T, buffer, x, b, start, count);
    const int64_t first = start % b.Q;
    return first + count <= b.Q ? elements_at(T, x, first)
                                : repeat_into(T, buffer, x, b.Q, first, count);
}

/* out <- factor x, repeated. x and out have the dtype of `like`; x is Real if real_x. */
void broadcast_copy(const Tensor *like, Real *out, bool accumulate, Real factor, const Real *x,
                    Broadcast b, bool real_x);

/* out [P, Q] <- factor sum over o, m, i of x[o, p, m, q, i], in an order that depends on the sizes
 * alone; on the CPU in double precision. x and out have the dtype of `like`; out is Real if
 * real_out. */
void broadcast_sum(Tape *tape, const Tensor *like, Real *out, bool accumulate, Real factor,
                   const Real *x, Broadcast b, bool real_out);

/* In a backward function: the buffer for dL/dx as if x had all elements of out. If x is repeated,
 * this is a workspace, and wide_gradient_end sums the repeats into x's gradient. data is NULL if x
 * requires no gradient. */
typedef struct WideGradient {
    Real *data;
    bool accumulate;
    Gradient gradient;
    Tensor *workspace;
} WideGradient;
WideGradient wide_gradient_begin(Node *node, Tensor *x, Broadcast b);
void wide_gradient_end(Node *node, Tensor *x, Broadcast b, WideGradient wide);

#endif
