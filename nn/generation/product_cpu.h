/* The products of a step on the CPU: of matrices by the rows of a few or of many sequences. */
#ifndef TAPEGRAD_NN_GENERATION_PRODUCT_CPU_H
#define TAPEGRAD_NN_GENERATION_PRODUCT_CPU_H

#include "tensor/tensor.h"

/* y = x weight^T + bias of B rows x, n numbers each; y replaces what is in out, or is added to it. */
typedef struct StepProduct {
    Real *out;
    const Real *x, *weight, *bias; /* bias NULL: 0 */
    int64_t B, n, out_stride, x_stride;
    bool add;
    Real *buffer; /* step_product_buffer numbers, of this thread alone; NULL: for few sequences */
} StepProduct;

/* The columns of y that the rows of the weight from begin on to end make. A number's bits depend on
 * n, its row and whether there is buffer, if begin is a multiple of a cache line's numbers. */
void step_product(const StepProduct *p, int64_t begin, int64_t end);

/* For products of so many numbers at most. */
int64_t step_product_buffer(int64_t n);

#endif
