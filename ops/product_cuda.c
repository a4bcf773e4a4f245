/* Products of matrices on CUDA: cuBLAS's.
 *
 * cuBLAS stores matrices by columns, and so takes a matrix stored by rows for its transpose. Hence
 * it is asked for out^T = b^T a^T: the operands change places, and nothing is transposed. */
#include "ops/product.h"
#include "tensor/cuda.h"
#include "tensor/internal.h"

#include <cublas_v2.h>
#include <pthread.h>

/* cuBLAS's state for a device. The workspace is our own: cuBLAS then takes no memory during a call,
 * which a CUDA graph's replays could not rely on, and splits sums alike in every run. */
typedef struct Blas {
    cublasHandle_t handle;
    void *workspace;
} Blas;

enum { WORKSPACE_BYTES = 32 << 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Blas all[CUDA_MOST_DEVICES];

/* False when memory is exhausted; raises at other errors. */
static bool succeeds(cublasStatus_t status, const char *operation)
{
    if (status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_ALLOC_FAILED)
        error_raise("%s: cuBLAS: %s", operation, cublasGetStatusString(status));
    return status == CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t open_blas(Blas *blas)
{
    if (!blas->workspace && cudaMalloc(&blas->workspace, WORKSPACE_BYTES) != cudaSuccess) {
        cudaGetLastError();
        return CUBLAS_STATUS_ALLOC_FAILED;
    }
    cublasHandle_t handle;
    cublasStatus_t status = cublasCreate(&handle);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    status = cublasSetStream(handle, cuda_stream());
    if (status == CUBLAS_STATUS_SUCCESS) /* in this order: a new stream forgets the workspace */
        status = cublasSetWorkspace(handle, blas->workspace, WORKSPACE_BYTES);
    if (status == CUBLAS_STATUS_SUCCESS)
        blas->handle = handle;
    else
        cublasDestroy(handle);
    return status;
}

/* The call's device's, opened at first use for as long as the process lives; NULL when memory is
 * exhausted. */
static cublasHandle_t blas_handle(const char *operation)
{
    Blas *blas = &all[cuda_index()];
    pthread_mutex_lock(&lock);
    cublasStatus_t status = blas->handle ? CUBLAS_STATUS_SUCCESS : open_blas(blas);
    pthread_mutex_unlock(&lock);
    return succeeds(status, operation) ? blas->handle : NULL;
}

/* ------------------------------------------------------------------------------------- precisions */
#ifdef TAPEGRAD_DOUBLE
static const cudaDataType_t real_type = CUDA_R_64F;

static cublasComputeType_t compute_type(Precision precision)
{
    (void)precision;
    return CUBLAS_COMPUTE_64F;
}
#else
static const cudaDataType_t real_type = CUDA_R_32F;

static cublasComputeType_t compute_type(Precision precision)
{
    switch (precision) {
    case PRECISION_FLOAT32:
        return CUBLAS_COMPUTE_32F_PEDANTIC; /* true float32, whatever the environment says */
    case PRECISION_TF32:
        return CUBLAS_COMPUTE_32F_FAST_TF32;
    case PRECISION_BF16:
        return CUBLAS_COMPUTE_32F;
    }
    return CUBLAS_COMPUTE_32F_PEDANTIC;
}
#endif

/* --------------------------------------------------------------------------------------- products */
static cublasStatus_t multiply(cublasHandle_t handle, Precision precision, Real *out,
                               bool accumulate, const Real *a, const Real *b, Product p)
{
    const Real one = 1, beta = accumulate;
    return cublasGemmStridedBatchedEx_64(handle, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                                         p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, p.m, p.n, p.k,
                                         &one, b, real_type, p.transpose_b ? p.k : p.m, p.b_step, a,
                                         real_type, p.transpose_a ? p.n : p.k, p.a_step, &beta, out,
                                         real_type, p.m, p.out_step, p.count,
                                         compute_type(precision), CUBLAS_GEMM_DEFAULT);
}

/* False when memory is exhausted. Products that add up come one after the other. */
bool product_cuda(const char *operation, Precision precision, Real *out, bool accumulate,
                  const Real *a, const Real *b, Product p)
{
    cublasHandle_t handle = blas_handle(operation);
    const int64_t terms = p.out_step == 0 ? p.count : 1;
    p.count /= terms;
    bool good = handle;
    for (int64_t term = 0; term < terms && good; term++)
        good = succeeds(multiply(handle, precision, out, accumulate || term > 0,
                                 a + term * p.a_step, b + term * p.b_step, p),
                        operation);
    return good;
}
