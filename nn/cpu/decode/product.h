/* The products of a decode step on the CPU, for small and for large batches. */
#ifndef TAPEGRAD_NN_DECODE_PRODUCT_CPU_H
#define TAPEGRAD_NN_DECODE_PRODUCT_CPU_H

#include "nn/decode/step.h"

/* Columns begin to end of out = in.x weight^T + bias, or of out += that if there is a residual,
 * which is out. buffer: step_product_buffer(I) elements, private to the thread; NULL: small batch.
 * The bits of an element depend only on its row of the weight and its type, on I and on whether
 * buffer is NULL, if begin is a multiple of the elements of a cache line. */
void step_product(const StepProduct *p, Real *buffer, int64_t begin, int64_t end);

/* Elements of buffer for rows of at most I elements. */
int64_t step_product_buffer(int64_t I);

#endif
