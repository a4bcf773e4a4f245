/* A broadcast as kernels see it, in C and CUDA: x [P, Q] repeated to [O, P, M, Q, I],
 *   out[o, p, m, q, i] = x[p, q]
 * Its gradient is the sum over o, m and i. Repeated axes and others alternate, so in rank 4 at most
 * two of O, M and I exceed 1. A row [Q] is repeated O times, a column [Q, 1] I times; op_sum along
 * an axis is the gradient of a broadcast along it. */
#ifndef TAPEGRAD_OPS_ELEMENTWISE_BROADCAST_VIEW_H
#define TAPEGRAD_OPS_ELEMENTWISE_BROADCAST_VIEW_H

#include <stdbool.h>
#include <stdint.h>

typedef struct Broadcast {
    int64_t O, P, M, Q, I; /* unless P > 1, M = 1; unless Q > 1, I = 1 */
} Broadcast;

#ifdef __CUDACC__
#define BROADCAST_FUNCTION static __host__ __device__ inline
#else
#define BROADCAST_FUNCTION static inline
#endif

/* The number of elements of out. */
BROADCAST_FUNCTION int64_t broadcast_count(Broadcast b)
{
    return b.O * b.P * b.M * b.Q * b.I;
}

/* Whether out repeats x as a whole: out[i] = x[i mod Q]. */
BROADCAST_FUNCTION bool broadcast_of_whole(Broadcast b)
{
    return b.P == 1 && b.I == 1;
}

#endif
