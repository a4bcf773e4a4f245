/* Products of matrices: the function beneath op_matmul and op_linear. */
#ifndef TAPEGRAD_OPS_PRODUCT_H
#define TAPEGRAD_OPS_PRODUCT_H

#include "autograd/tape.h"

/* out [n, m] = a [n, k] b [k, m], count times over. With transpose_a, a is stored as [k, n]; with
 * transpose_b, b as [m, k]. From one product to the next each matrix lies so many elements on, or 0
 * when all share it; of a shared out the products add up. */
typedef struct Product {
    int64_t n, k, m;
    bool transpose_a, transpose_b;
    int64_t count, out_step, a_step, b_step;
} Product;

/* Stores the product, or adds it to out when accumulate, in the tape's precision. A run repeats bit
 * for bit. operation names the caller in messages. */
void product(Tape *tape, const char *operation, Real *out, bool accumulate, const Real *a,
             const Real *b, Product size);

#endif
