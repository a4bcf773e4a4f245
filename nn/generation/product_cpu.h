/* The products of a decode step on the CPU, for small and for large batches. */
#ifndef TAPEGRAD_NN_GENERATION_PRODUCT_CPU_H
#define TAPEGRAD_NN_GENERATION_PRODUCT_CPU_H

#include "tensor/tensor.h"

/* out = x weight^T + bias, or out += that: B rows x of n elements each. */
typedef struct StepProduct {
    Real *out;
    const Real *x, *weight, *bias; /* bias NULL: 0 */
    int64_t B, n, out_stride, x_stride;
    bool add;
    Real *buffer; /* step_product_buffer elements, private to the thread; NULL: small batch */
} StepProduct;

/* Computes columns begin to end of out, the products with these rows of the weight. The bits of an
 * element depend only on its row, on n and on whether buffer is NULL, if begin is a multiple of the
 * elements of a cache line. */
void step_product(const StepProduct *p, int64_t begin, int64_t end);

/* Elements of buffer for rows of at most n elements. */
int64_t step_product_buffer(int64_t n);

#endif
