/* A broadcast as kernels see it, in C and CUDA: x [P, Q] repeated to [O, P, M, Q, I],
 *   out[o, p, m, q, i] = x[p, q]
 * Its gradient is the sum over o, m and i. Repeated axes and others alternate, so in rank 4 at most
 * two of O, M and I exceed 1. A row [Q] is repeated O times, a column [Q, 1] I times; op_sum along
 * an axis is the gradient of a broadcast along it. */
#ifndef TAPEGRAD_OPS_ELEMENTWISE_BROADCAST_H
#define TAPEGRAD_OPS_ELEMENTWISE_BROADCAST_H

#include "autograd/tape.h"
#include "tensor/kernel.h"

typedef struct Broadcast {
    int64_t O, P, M, Q, I; /* unless P > 1, M = 1; unless Q > 1, I = 1 */
} Broadcast;

/* The number of elements of out. */
SHARED_FUNCTION int64_t broadcast_count(Broadcast b)
{
    return b.O * b.P * b.M * b.Q * b.I;
}

/* Whether out repeats x as a whole: out[i] = x[i mod Q]. */
SHARED_FUNCTION bool broadcast_of_whole(Broadcast b)
{
    return b.P == 1 && b.I == 1;
}

/* The operands of where: its condition and the values to choose from, broadcast. */
typedef struct Choice {
    const Real *c, *a, *b;
    Broadcast c_view, a_view, b_view;
} Choice;

/* Broadcasts out with x: aligned at the last axis, sizes are equal, or one of them is 1 or missing.
 * Returns false otherwise. */
#pragma GCC visibility push(default)
bool op_broadcast_with(Shape *out, Shape x);
#pragma GCC visibility pop

/* The view of x's repetition to the shape out, which x fits. */
Broadcast broadcast_of(Shape x, Shape out);

/* Elements first, ..., first + count - 1 of x, broadcast: in place if x has them one after the
 * other, else written to buffer. */
const Real *broadcast_block(Real *buffer, const Real *x, Broadcast b, int64_t first, int64_t count);

#endif
