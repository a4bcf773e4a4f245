#include "ops/cuda/products/blas.h"
#include "tensor/cuda/cuda.h"
#include "tensor/internal.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Blas all[CUDA_MAX_DEVICES];

void blas_check(cublasStatus_t status)
{
    if (status == CUBLAS_STATUS_ALLOC_FAILED)
        error_raise_operation("memory is exhausted: cuBLAS could not allocate its workspace");
    if (status != CUBLAS_STATUS_SUCCESS)
        error_raise_operation("cuBLAS: %s", cublasGetStatusString(status));
}

/* Continues where a failed call stopped. */
static cublasStatus_t open_blas(Blas *blas)
{
    if (!blas->workspace && cudaMalloc(&blas->workspace, BLAS_WORKSPACE_BYTES) != cudaSuccess) {
        cudaGetLastError();
        return CUBLAS_STATUS_ALLOC_FAILED;
    }
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (!blas->light)
        status = cublasLtCreate(&blas->light);
    cublasHandle_t handle = NULL;
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasCreate(&handle);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasSetStream(handle, cuda_stream());
    if (status == CUBLAS_STATUS_SUCCESS) /* setting the stream resets the workspace */
        status = cublasSetWorkspace(handle, blas->workspace, BLAS_WORKSPACE_BYTES);
    if (status == CUBLAS_STATUS_SUCCESS)
        blas->handle = handle;
    else if (handle)
        cublasDestroy(handle);
    return status;
}

const Blas *blas_open(void)
{
    Blas *blas = &all[cuda_index()];
    pthread_mutex_lock(&lock);
    cublasStatus_t status = blas->handle ? CUBLAS_STATUS_SUCCESS : open_blas(blas);
    pthread_mutex_unlock(&lock);
    blas_check(status);
    return blas;
}

cudaDataType_t blas_type(TensorType type)
{
    if (type == TENSOR_BF16)
        return CUDA_R_16BF;
    return sizeof(Real) == sizeof(double) ? CUDA_R_64F : CUDA_R_32F;
}

cublasComputeType_t blas_compute_type(Precision precision)
{
#ifdef TAPEGRAD_DOUBLE
    (void)precision;
    return CUBLAS_COMPUTE_64F;
#else
    switch (precision) {
    case PRECISION_FLOAT32:
        return CUBLAS_COMPUTE_32F_PEDANTIC; /* true float32, whatever the environment sets */
    case PRECISION_TF32:
        return CUBLAS_COMPUTE_32F_FAST_TF32;
    case PRECISION_BF16:
        return CUBLAS_COMPUTE_32F;
    }
    return CUBLAS_COMPUTE_32F_PEDANTIC;
#endif
}
