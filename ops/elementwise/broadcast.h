/* Broadcasting, and sums over the repeats.
 *
 * out has n elements. An input has the same number, or its shape is the trailing axes of out's:
 * then it has m elements, is repeated n / m times, and element i of out uses element i mod m. */
#ifndef TAPEGRAD_OPS_ELEMENTWISE_H
#define TAPEGRAD_OPS_ELEMENTWISE_H

#include "ops/shared/internal.h"

/* The shape of out; raises when neither is the trailing axes of the other. */
Shape broadcast_shape(Tape *tape, const char *operation, const Tensor *a, const Tensor *b);

/* Kernels process out in blocks, on all threads. */
enum { BLOCK = 1024 };

#define PARALLEL_BLOCKS(start, n)                                                                  \
    PRAGMA(omp parallel for schedule(static) if ((n) >= PARALLEL_MINIMUM))                         \
    for (int64_t start = 0; start < (n); start += BLOCK)

static inline int64_t block_count(int64_t start, int64_t n)
{
    return n - start < BLOCK ? n - start : BLOCK;
}

/* Elements start, ..., start + count - 1 of x [m] repeated: returned in place if contiguous;
 * otherwise copied into buffer and repeated there. */
static inline const Real *repeated(Real *buffer, const Real *x, int64_t m, int64_t start,
                                   int64_t count)
{
    int64_t first = start % m;
    if (first + count <= m)
        return x + first;
    int64_t tail = count < m - first ? count : m - first;
    int64_t head = count - tail < first ? count - tail : first;
    memcpy(buffer, x + first, (size_t)tail * sizeof(Real));
    memcpy(buffer + tail, x, (size_t)head * sizeof(Real));
    for (int64_t done = tail + head, more; done < count; done += more) {
        more = count - done < done ? count - done : done;
        memcpy(buffer + done, buffer, (size_t)more * sizeof(Real));
    }
    return buffer;
}

/* sum_i x[i] on the CPU: in double precision, in an order that does not depend on the number of
 * threads. */
double sum_all(const Real *x, int64_t n);

/* out[c] <- factor sum_r x[r, c], x [rows, columns], in an order that depends on the sizes alone;
 * on the CPU in double precision. out and x have the dtype of `like`. */
void sum_repeats(Tape *tape, const Tensor *like, Real *out, bool accumulate, Real factor,
                 const Real *x, int64_t rows, int64_t columns);

/* In a backward function: the buffer for dL/dx as if x had all n elements. If x is repeated, this
 * is scratch memory, and broadcast_end sums the repeats into x's gradient. data is NULL if x
 * requires no gradient. */
typedef struct Broadcast {
    Real *data;
    bool accumulate;
    Gradient gradient;
    Tensor *scratch;
} Broadcast;
Broadcast broadcast_begin(Node *node, Tensor *x, int64_t n);
void broadcast_end(Node *node, Tensor *x, Broadcast broadcast);

#endif
