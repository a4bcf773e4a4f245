/* The work of one thread in a product on the CPU. */
#ifndef TAPEGRAD_OPS_PRODUCTS_PRODUCT_CPU_H
#define TAPEGRAD_OPS_PRODUCTS_PRODUCT_CPU_H

#include "ops/products/product.h"

#if defined(__x86_64__) && !defined(TAPEGRAD_DOUBLE)
#define USES_ONEDNN
#endif

/* Some rows or columns of out [n, m], and the rows of a or columns of b that they depend on; of
 * `count` products in bf16, the Product's steps apart. */
typedef struct ProductPiece {
    Real *out;
    const Real *a, *b;
    int64_t n, m, count;
} ProductPiece;

/* A product of bf16 operands with sums in float32, rounded once if out is bf16. Returns false if
 * memory is exhausted. Only for processors with such instructions; see device_has_bf16. */
bool multiply_bf16(ProductPiece piece, TensorType out_type, bool accumulate, Product p);

#endif
