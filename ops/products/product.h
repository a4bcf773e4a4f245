/* Products of matrices: the function beneath op_matmul and op_linear. */
#ifndef TAPEGRAD_OPS_PRODUCTS_PRODUCT_H
#define TAPEGRAD_OPS_PRODUCTS_PRODUCT_H

#include "autograd/tape.h"

/* out [n, m] = a [n, k] b [k, m], count times over. With transpose_a, a is stored as [k, n]; with
 * transpose_b, b as [m, k]. From one product to the next each matrix lies so many elements on, or 0
 * when all share it; of a shared out the products add up. */
typedef struct Product {
    int64_t n, k, m;
    bool transpose_a, transpose_b;
    int64_t count, out_step, a_step, b_step;
} Product;

/* Where matrices lie, of type Real or bf16. */
typedef struct Operand {
    const Real *data;
    TensorType type;
} Operand;

typedef struct Result {
    Real *data;
    TensorType type;
    bool accumulate; /* adds the product to what is there */
} Result;

static inline Operand operand_of(const Tensor *tensor)
{
    Operand operand = { tensor->data, tensor->type };
    return operand;
}
static inline Result result_in(const Tensor *tensor)
{
    Result result = { tensor->data, tensor->type, false };
    return result;
}
static inline Result result_for(Gradient gradient, const Tensor *tensor)
{
    Result result = { gradient.data, tensor->type, gradient.accumulate };
    return result;
}

/* In a backward function: dL/doutput of the node's one output. */
static inline Operand upstream_operand(const Node *node)
{
    Operand operand = { tape_upstream(node, 0), node->outputs[0]->type };
    return operand;
}

/* How products of the tape take activations and give theirs. */
static inline TensorType product_type(const Tape *tape)
{
    return tape_precision(tape) == PRECISION_BF16 ? TENSOR_BF16 : TENSOR_REAL;
}

/* In the tape's precision; a and b are of one type, product_type's. A run repeats bit for
 * bit. operation names the caller in messages. */
void product(Tape *tape, const char *operation, Result out, Operand a, Operand b, Product size);

#endif
