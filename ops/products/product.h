/* Matrix products, as op_matmul and op_linear compute them. */
#ifndef TAPEGRAD_OPS_PRODUCTS_PRODUCT_H
#define TAPEGRAD_OPS_PRODUCTS_PRODUCT_H

#include "autograd/tape.h"
#include "tensor/kernel.h"

/* count products out [n, m] = a [n, k] b [k, m]. With transpose_a, a is stored as [k, n]; with
 * transpose_b, b as [m, k]. The steps are the distances in elements from one product's matrix to
 * the next; a step of 0 means that all products share the matrix, and a shared out is the sum of
 * the products. */
typedef struct Product {
    int64_t n, k, m;
    bool transpose_a, transpose_b;
    int64_t count, out_step, a_step, b_step;
} Product;

/* Matrices in memory, of dtype Real or bf16. */
typedef struct Operand {
    const Real *data;
    TensorType type;
} Operand;

typedef struct Result {
    Real *data;
    TensorType type;
    bool accumulate; /* add the product to data */
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

/* In a backward function: the upstream gradient of the node's only output. */
static inline Operand upstream_operand(const Node *node)
{
    Operand operand = { tape_upstream(node, 0), node->outputs[0]->type };
    return operand;
}

/* The dtype of activations that products on this tape read and write. */
static inline TensorType product_type(const Tape *tape)
{
    return tape_precision(tape) == PRECISION_BF16 ? TENSOR_BF16 : TENSOR_REAL;
}

#pragma GCC visibility push(default)

/* Computes `size` in the tape's precision; a and b have one dtype. Runs repeat bit for bit. */
void op_product(Tape *tape, Result out, Operand a, Operand b, Product size);

/* In a backward function: the gradient of an input, if it requires one, <- a b. */
void op_contribute_product(Node *node, Tensor *input, Operand a, Operand b, Product size);

#pragma GCC visibility pop

/* A parameter, which is Real, in the dtype of the node's output, since a product's operands have
 * one dtype: itself, the Params' copy of it, or *copy, a tensor of the node. NULL: no parameter. */
Operand operand_of_parameter(const Node *node, Tensor *parameter, Tensor **copy);

#endif
