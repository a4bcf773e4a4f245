/* cuBLAS on the device that a CUDA launcher is called for. */
#ifndef TAPEGRAD_OPS_PRODUCTS_BLAS_H
#define TAPEGRAD_OPS_PRODUCTS_BLAS_H

#include "autograd/tape.h"

#include <cublasLt.h>
#include <cublas_v2.h>

/* A device's handles, which work on its stream. The workspace is our own: cuBLAS then takes no
 * memory during a call, which a CUDA graph's replays could not rely on, and splits sums alike in
 * every run. */
typedef struct Blas {
    cublasHandle_t handle;
    cublasLtHandle_t light;
    void *workspace;
} Blas;

enum { BLAS_WORKSPACE_BYTES = 32 << 20 };

/* Opened at first use, for as long as the process lives; raises when that fails, as operation. */
const Blas *blas_open(const char *operation);

/* Raises "operation: cuBLAS: its own words" unless the status is success. */
void blas_check(cublasStatus_t status, const char *operation);

/* How numbers are stored, and how products of a precision are computed. */
cudaDataType_t blas_type(TensorType type);
cublasComputeType_t blas_compute_type(Precision precision);

#endif
