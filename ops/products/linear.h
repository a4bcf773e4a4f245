/* Products with an epilogue, where a device offers them: a linear layer in one pass. */
#ifndef TAPEGRAD_OPS_PRODUCTS_LINEAR_H
#define TAPEGRAD_OPS_PRODUCTS_LINEAR_H

#include "ops/ops.h"
#include "ops/products/product.h"

typedef enum {
    EPILOGUE_ACTIVATE,      /* out = f(product + bias), f the activation */
    EPILOGUE_DERIVATIVE,    /* out = product f'(y) */
    EPILOGUE_BIAS_GRADIENT, /* out = product (+ out), bias_r = sum_k a_rk */
} EpilogueKind;

/* What a product out [n, m] = a [n, k] b [k, m] does before it stores an element. */
typedef struct Epilogue {
    EpilogueKind kind;
    Activation activation;
    Real *bias;  /* [m], stored as out is; the bias gradient: [n], Reals */
    void *saved; /* gelu: y [n, m]; relu: for each y whether it is above 0, a bit, n rows of
                  * relu_mask_bits(m). EPILOGUE_ACTIVATE writes it, or it is NULL;
                  * EPILOGUE_DERIVATIVE reads it */
} Epilogue;

static inline int64_t relu_mask_bits(int64_t m)
{
    enum { UNIT = 128 }; /* cublasLt's */
    return (m + UNIT - 1) / UNIT * UNIT;
}

/* A layer's forward pass in one product, for kernels that have no tape: out = activation(y),
 * y = x weight^T + bias. */
typedef struct LinearPass {
    Real *out, *y;                 /* [R, O]; y: gelu's, or NULL */
    const Real *x, *weight, *bias; /* [R, I], [O, I], [O] */
    int64_t R, I, O;
    Activation activation;
    Precision precision;
    TensorType type; /* of all matrices, and here of the bias too */
    const char *operation;
} LinearPass;

#endif
