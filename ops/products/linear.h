/* Arguments of the kernels of a linear layer. */
#ifndef TAPEGRAD_OPS_PRODUCTS_LINEAR_H
#define TAPEGRAD_OPS_PRODUCTS_LINEAR_H

#include "ops/elementwise/activation.h"
#include "ops/products/product.h"

/* out = activation(y), y = x weight^T + bias */
typedef struct LinearPass {
    Real *out, *y;                 /* [R, O]; y: saved for gelu, gelu_tanh and silu, or NULL */
    const Real *x, *weight, *bias; /* [R, I], [O, I], [O] or NULL; the bias is Real */
    int64_t R, I, O;
    Activation activation;
    Precision precision;
    TensorType type;       /* of out, y, x and weight */
    const Real *bias_copy; /* the bias in `type`, if that is not Real and a product adds it */
} LinearPass;

static inline Product linear_product(const LinearPass *pass)
{
    Product product = { pass->R, pass->I, pass->O, false, true, 1, 0, 0, 0 };
    return product;
}

#endif
