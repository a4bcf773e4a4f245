/* What cuBLAS computes, by plain loops that the sanitizers see into:
 *
 *     d = epilogue(alpha op(a) op(b) + beta c)       for each of `count` products
 *
 * Matrices lie by columns, as cuBLAS has them. */
#ifndef CUDA_ON_HOST_PRODUCT_H
#define CUDA_ON_HOST_PRODUCT_H

#include "emulation.h"
#include "include/cublasLt.h"

struct Matrix {
    const void *data;
    cudaDataType_t type;
    bool transposed;
    int64_t ld, step; /* elements from one column to the next, from one product to the next */
};

struct Product {
    int64_t m, n, k, count;
    cublasComputeType_t compute;
    double alpha, beta;
    Matrix a, b, c, d; /* d's data is written; c's may be NULL when beta is 0 */
    unsigned epilogue; /* CUBLASLT_EPILOGUE_... */
    Matrix bias;       /* or its gradient: a column */
    Matrix auxiliary;  /* bits, or what gelu was taken of */
};

/* The scale that cuBLAS reads alpha and beta as. */
double product_scale(cublasComputeType_t compute, const void *scale);

/* Whether cuBLAS has a product with these types and sizes. */
cublasStatus_t product_check(const Product &product);

/* On the stream, as any other work; aborts when an operand is not the device's memory. */
cublasStatus_t product_enqueue(const char *who, const Product &product, cudaStream_t stream);

#endif
