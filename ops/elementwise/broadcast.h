/* Broadcasting: what add, subtract, multiply and divide share.
 *
 * out has n numbers. An input has as many, or it is the trailing axes of out's shape, has m numbers,
 * and is repeated n / m times: number i of out is made from its number i mod m. */
#ifndef TAPEGRAD_OPS_ELEMENTWISE_H
#define TAPEGRAD_OPS_ELEMENTWISE_H

#include "ops/internal.h"

/* The shape of out; raises when neither is the trailing axes of the other. */
Shape broadcast_shape(Tape *tape, const char *operation, const Tensor *a, const Tensor *b);

/* Kernels go through out in blocks, on all threads. */
enum { BLOCK = 1024 };

#define PARALLEL_BLOCKS(start, n)                                                                  \
    PRAGMA(omp parallel for schedule(static) if ((n) >= PARALLEL_MINIMUM))                         \
    for (int64_t start = 0; start < (n); start += BLOCK)

static inline int64_t block_count(int64_t start, int64_t n)
{
    return n - start < BLOCK ? n - start : BLOCK;
}

/* The numbers start, ..., start + count - 1 of x [m] repeated: in their place when they lie there
 * in a row, else copied into room, and then what is in room again and again. */
static inline const Real *repeated(Real *room, const Real *x, int64_t m, int64_t start,
                                   int64_t count)
{
    int64_t first = start % m;
    if (first + count <= m)
        return x + first;
    int64_t tail = count < m - first ? count : m - first;
    int64_t head = count - tail < first ? count - tail : first;
    memcpy(room, x + first, (size_t)tail * sizeof(Real));
    memcpy(room + tail, x, (size_t)head * sizeof(Real));
    for (int64_t done = tail + head, more; done < count; done += more) {
        more = count - done < done ? count - done : done;
        memcpy(room + done, room, (size_t)more * sizeof(Real));
    }
    return room;
}

/* sum_i x[i] on the CPU: in double precision, in an order that does not depend on the number of
 * threads. */
double sum_all(const Real *x, int64_t n);

/* out[c] <- factor sum_r x[r, c], x [rows, columns], in an order that depends on the sizes alone, on
 * the CPU in double precision. out and x are stored as `like`. */
void sum_repeats(Tape *tape, const Tensor *like, Real *out, bool accumulate, Real factor,
                 const Real *x, int64_t rows, int64_t columns);

/* In a backward function: the place for dL/dx as if x had all n numbers. Where x is repeated this
 * is scratch memory, and broadcast_end sums the repeats into x's gradient. data is NULL when x
 * wants no gradient. */
typedef struct Broadcast {
    Real *data;
    bool accumulate;
    Gradient gradient;
    Tensor *scratch;
} Broadcast;
Broadcast broadcast_begin(Node *node, Tensor *x, int64_t n);
void broadcast_end(Node *node, Tensor *x, Broadcast broadcast);

#endif
