/* cuBLAS's matrix products as plain loops, whose memory accesses the sanitizers check:
 *
 *     d = epilogue(alpha op(a) op(b) + beta c)       for each of `count` products
 *
 * Matrices are column-major, as in cuBLAS. */
#ifndef CUDA_ON_HOST_PRODUCT_H
#define CUDA_ON_HOST_PRODUCT_H

#include "emulation.h"
#include "include/cublasLt.h"

struct Matrix {
    const void *data;
    cudaDataType_t type;
    bool transposed;
    int64_t ld, step; /* strides of columns and of products, in elements */
};

struct Product {
    int64_t m, n, k, count;
    cublasComputeType_t compute;
    double alpha, beta;
    Matrix a, b, c, d; /* d is written; c.data may be NULL if beta is 0 */
    unsigned epilogue; /* CUBLASLT_EPILOGUE_... */
    Matrix bias;       /* a column: the bias, or its gradient */
    Matrix auxiliary;  /* for relu: bits, x > 0; for gelu: x itself */
};

/* alpha or beta, which `compute` defines to be a float or a double. */
double product_scale(cublasComputeType_t compute, const void *scale);

/* CUBLAS_STATUS_SUCCESS if cuBLAS supports these types and sizes. */
cublasStatus_t product_check(const Product &product);

/* Enqueues the product; aborts if an operand is not memory of the current device. */
cublasStatus_t product_enqueue(const char *who, const Product &product, cudaStream_t stream);

#endif
