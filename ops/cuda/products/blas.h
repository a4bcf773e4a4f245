/* cuBLAS on the device of the current CUDA launcher. */
#ifndef TAPEGRAD_OPS_PRODUCTS_BLAS_H
#define TAPEGRAD_OPS_PRODUCTS_BLAS_H

#include "autograd/tape.h"

#include <cublasLt.h>
#include <cublas_v2.h>

/* One device's handles, on its stream. The workspace is ours, so cuBLAS allocates nothing during a
 * call, as CUDA graph replay requires, and splits sums the same way in every run. */
typedef struct Blas {
    cublasHandle_t handle;
    cublasLtHandle_t light;
    void *workspace;
} Blas;

enum { BLAS_WORKSPACE_BYTES = 32 << 20 };

/* Opened at first use and never closed; raises in the operation's name on failure. */
const Blas *blas_open(void);

/* Raises "operation: cuBLAS: its status text" unless the status is success. */
void blas_check(cublasStatus_t status);

/* cuBLAS's constants for a dtype, and for the arithmetic of a precision. */
cudaDataType_t blas_type(TensorType type);
cublasComputeType_t blas_compute_type(Precision precision);

#endif
