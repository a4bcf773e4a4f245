/* What the elementwise operations share with the CPU backend: their loops, and blocks. */
#ifndef TAPEGRAD_OPS_ELEMENTWISE_ELEMENTWISE_H
#define TAPEGRAD_OPS_ELEMENTWISE_ELEMENTWISE_H

#include "ops/elementwise/binary_functions.h"
#include "ops/elementwise/unary_functions.h"
#include "ops/shared/internal.h"

/* The loops of a row, on the calling thread. k: the operation's constants; read: x or out,
 * whichever the gradient reads. */
typedef struct UnaryLoops {
    void (*forward)(Real *out, const Real *x, Constants k, int64_t n);
    void (*backward)(Gradient dx, const Real *dout, const Real *read, Constants k, int64_t n);
} UnaryLoops;
UnaryLoops unary_loops(UnaryFunction f);

/* backward, by input: a, b. read: a or b, whichever the gradient reads. */
typedef struct BinaryLoops {
    void (*forward)(Real *out, const Real *a, const Real *b, int64_t n);
    void (*backward[2])(Gradient dx, const Real *dout, const Real *out, const Real *read,
                        int64_t n);
} BinaryLoops;
BinaryLoops binary_loops(BinaryFunction f);

/* A loop over blocks of n independent elements, divided among the threads. */
enum { BLOCK_ELEMENTS = 1024 };
#define EACH_BLOCK(first, n)                                                                       \
    PRAGMA(omp parallel for schedule(static) num_threads(device_threads_for(n, 0.3)))              \
    for (int64_t first = 0; first < (n); first += BLOCK_ELEMENTS)

static inline int64_t block_count(int64_t first, int64_t n)
{
    return n - first < BLOCK_ELEMENTS ? n - first : BLOCK_ELEMENTS;
}

#endif
