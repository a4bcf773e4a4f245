/* The products of a decode step on the CPU, for small and for large batches. */
#ifndef TAPEGRAD_DECODE_CPU_PRODUCT_H
#define TAPEGRAD_DECODE_CPU_PRODUCT_H

#include "ext/decode/kernels.h"

/* How the weight of a product is stored. */
typedef enum WeightType {
    WEIGHT_REAL = TENSOR_REAL,
    WEIGHT_BF16 = TENSOR_BF16,
    WEIGHT_INT8, /* 8-bit integers with one scale per row; see product.c */
} WeightType;

typedef struct StepLinear {
    const Real *weight, *bias; /* [out, in], [out] or NULL */
    WeightType type;
    const Real *scales; /* [out] for WEIGHT_INT8; otherwise NULL */
} StepLinear;

/* A layer's products; input computes query, key and value, [3 width, width]. The state's weights
 * are one of these per layer, then the 8-bit copies. */
typedef struct StepLayer {
    StepLinear input, output, ff1, ff2;
} StepLayer;

static inline const StepLayer *step_layers(const TransformerState *state)
{
    return state->weights->data;
}

/* out [B, O] (+)= x [B, I] weight^T + bias */
typedef struct StepProduct {
    Real *out;
    bool accumulate;
    const Real *x;
    StepLinear linear;
    int64_t B, I, O;
} StepProduct;

/* Columns begin to end of a product. buffer: step_product_buffer(I) elements, private to the
 * thread; NULL: small batch. The bits of an element depend only on its row of the weight and its
 * type, on I and on whether buffer is NULL, if begin is a multiple of the elements of a cache
 * line. */
void step_product(const StepProduct *p, Real *buffer, int64_t begin, int64_t end);

/* Fills state->weights. */
void store_step_weights(TransformerState *state, bool int8_weights);

/* Elements of buffer for rows of at most I elements. */
int64_t step_product_buffer(int64_t I);

#endif
