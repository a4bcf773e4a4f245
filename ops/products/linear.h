/* Products with an epilogue, on devices that have them: a linear layer in one pass. */
#ifndef TAPEGRAD_OPS_PRODUCTS_LINEAR_H
#define TAPEGRAD_OPS_PRODUCTS_LINEAR_H

#include "ops/elementwise/activation.h"
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

OLD_KERNEL(void, linear_activate, Real *out, Real *y, const Real *bias, Activation activation,
           int64_t R, int64_t O);
OLD_KERNEL(void, linear_activate_backward, Real *h, Real *partial, const Real *g, const Real *y,
           Activation activation, int64_t R, int64_t O);
DEVICE_FUNCTION(void, linear_copy, Real *to, const Real *weight, int64_t n, int64_t bias_at,
                const Real *bias, int64_t m);

/* Return false and compute nothing if the device has no such product. */
CUDA_FUNCTION(bool, fused_product, const char *operation, Precision precision, Result out,
              Operand a, Operand b, Product size, Epilogue epilogue);
CUDA_FUNCTION(bool, linear_pass, LinearPass pass);

#endif
