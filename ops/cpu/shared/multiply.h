/* The work of one thread in a product on the CPU. */
#ifndef TAPEGRAD_OPS_CPU_SHARED_MULTIPLY_H
#define TAPEGRAD_OPS_CPU_SHARED_MULTIPLY_H

#include "ops/products/product.h"

/* Some rows or columns of out [n, m], and the rows of a or columns of b that they depend on; of
 * `count` products in bf16, the Product's steps apart. */
typedef struct ProductPiece {
    Real *out;
    const Real *a, *b;
    int64_t n, m, count;
    const Real *bias; /* [m] or NULL; bf16: added to each row before it is rounded */
} ProductPiece;

/* Whether kernels of the current device may call oneDNN: false in a build without it, and on
 * "cpu:repeatable", since its results depend on how a product is divided. */
bool uses_onednn(void);

/* One product of Reals by register tiles (tiles.c). packed: product_workspace(p) Reals, aligned to
 * a cache line. */
void multiply_tiles(ProductPiece piece, bool accumulate, Product p, Real *packed);
int64_t product_workspace(Product p);

/* product_cpu without conversions; in bf16, where the device has its products, out = a b + bias [m]
 * unless bias is NULL. */
void product_with_bias(Result out, Operand a, Operand b, const Real *bias, Product p);

#ifdef TAPEGRAD_ONEDNN
/* The same by oneDNN (onednn.c). Returns false if memory is exhausted. */
bool multiply_onednn(ProductPiece piece, bool accumulate, Product p);

/* Products of bf16 operands with sums in float32, rounded once if out is bf16. Returns false if
 * memory is exhausted. Only for processors with such instructions; see device_has_bf16. */
bool multiply_bf16(ProductPiece piece, TensorType out_type, bool accumulate, Product p);
#endif

#endif
