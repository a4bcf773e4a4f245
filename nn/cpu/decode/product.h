/* The products of a decode step on the CPU, for small and for large batches. */
#ifndef TAPEGRAD_NN_DECODE_PRODUCT_CPU_H
#define TAPEGRAD_NN_DECODE_PRODUCT_CPU_H

#include "nn/decode/step.h"

/* Columns begin to end of out = in.x weight^T + bias, or of out += that if there is a residual,
 * which is out. buffer: step_product_buffer(I) elements, private to the thread; NULL: small batch.
 * The bits of an element depend only on its row of the weight and its type, on I and on whether
 * buffer is NULL, if begin is a multiple of the elements of a cache line. */
void step_product(const StepProduct *p, Real *buffer, int64_t begin, int64_t end);

/* Stores weight [O, I] in 8 bits: to [O, I] bytes and scales [O], weight_oi = scales_o q_oi with
 * q_oi in -127 to 127, rounded to nearest. A row with NaN or infinity becomes NaN, one whose scale
 * would be denormal 0. */
void step_quantize(int8_t *to, Real *scales, const Real *weight, int64_t O, int64_t I);

/* Elements of buffer for rows of at most I elements. */
int64_t step_product_buffer(int64_t I);

#endif
