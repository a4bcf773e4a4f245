/* Products with an epilogue, on devices that have them: a linear layer in one pass. */
#ifndef TAPEGRAD_OPS_PRODUCTS_LINEAR_H
#define TAPEGRAD_OPS_PRODUCTS_LINEAR_H

#include "ops/ops.h"
#include "ops/products/product.h"

typedef enum {
    EPILOGUE_ACTIVATE,      /* out = f(product + bias), f the activation */
    EPILOGUE_DERIVATIVE,    /* out = product f'(y) */
    EPILOGUE_BIAS_GRADIENT, /* out = product (+ out), bias_r = sum_k a_rk */
} EpilogueKind;

/* Applied by a product out [n, m] = a [n, k] b [k, m] before it stores an element. */
typedef struct Epilogue {
    EpilogueKind kind;
    Activation activation;
    Real *bias;  /* [m], dtype of out; EPILOGUE_BIAS_GRADIENT: [n], dtype Real */
    void *saved; /* gelu: y [n, m]; relu: one bit per element, y > 0, n rows of
                  * relu_mask_bits(m) bits. EPILOGUE_ACTIVATE writes it, unless NULL;
                  * EPILOGUE_DERIVATIVE reads it */
} Epilogue;

static inline int64_t relu_mask_bits(int64_t m)
{
    enum { UNIT = 128 }; /* required by cublasLt */
    return (m + UNIT - 1) / UNIT * UNIT;
}

/* A layer's forward pass in one product, for callers without a tape: out = activation(y),
 * y = x weight^T + bias. */
typedef struct LinearPass {
    Real *out, *y;                 /* [R, O]; y: saved for gelu, or NULL */
    const Real *x, *weight, *bias; /* [R, I], [O, I], [O] */
    int64_t R, I, O;
    Activation activation;
    Precision precision;
    TensorType type; /* of all matrices and of the bias */
    const char *operation;
} LinearPass;

#endif
