/* cuBLAS's handles and products. */
#include "product.h"

struct cublasContext {
    int device;
    cudaStream_t stream;
    cublasPointerMode_t pointers;
    cublasMath_t math;
};

const char *cublasGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
        return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
        return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
        return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR:
        return "CUBLAS_STATUS_LICENSE_ERROR";
    }
    return "unknown cuBLAS status";
}

const char *cublasGetStatusString(cublasStatus_t status)
{
    return cublasGetStatusName(status);
}

/* -------------------------------------------------------------------------------------- handles */
cublasStatus_t cublasCreate_v2(cublasHandle_t *handle)
{
    int count;
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        cudaGetLastError();
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    *handle = new cublasContext{ emulation_device(), NULL, CUBLAS_POINTER_MODE_HOST,
                                 CUBLAS_DEFAULT_MATH };
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    delete handle;
    return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t *stream)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *stream = handle->stream;
    return CUBLAS_STATUS_SUCCESS;
}

/* The workspace is unused, but must be memory of the device with the alignment of cuBLAS. */
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t size)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if ((uintptr_t)workspace % 256 != 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (size > 0)
        emulation_check_memory("cublasSetWorkspace", "the workspace", workspace, size,
                               handle->device);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->pointers = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->math = mode;
    return CUBLAS_STATUS_SUCCESS;
}

/* ------------------------------------------------------------------------------------- products */
/* clang-format off */
cublasStatus_t cublasGemmStridedBatchedEx_64(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
    int64_t m, int64_t n, int64_t k,
    const void *alpha, const void *a, cudaDataType a_type, int64_t lda, long long stride_a,
    const void *b, cudaDataType b_type, int64_t ldb, long long stride_b,
    const void *beta, void *c, cudaDataType c_type, int64_t ldc, long long stride_c,
    int64_t count, cublasComputeType_t compute, cublasGemmAlgo_t)
/* clang-format on */
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (handle->device != emulation_device() || handle->pointers != CUBLAS_POINTER_MODE_HOST)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    if (compute == CUBLAS_COMPUTE_32F && a_type == CUDA_R_32F &&
        (handle->math & 15) == CUBLAS_TF32_TENSOR_OP_MATH)
        compute = CUBLAS_COMPUTE_32F_FAST_TF32;
    Product product = {};
    product.m = m;
    product.n = n;
    product.k = k;
    product.count = count;
    product.compute = compute;
    product.a = { a, a_type, transa != CUBLAS_OP_N, lda, stride_a };
    product.b = { b, b_type, transb != CUBLAS_OP_N, ldb, stride_b };
    product.c = product.d = { c, c_type, false, ldc, stride_c };
    product.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const cublasStatus_t status = product_check(product);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    product.alpha = product_scale(compute, alpha);
    product.beta = product_scale(compute, beta);
    return product_enqueue("cublasGemm", product, handle->stream);
}

/* clang-format off */
cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k,
    const void *alpha, const void *a, cudaDataType a_type, int lda, long long stride_a,
    const void *b, cudaDataType b_type, int ldb, long long stride_b,
    const void *beta, void *c, cudaDataType c_type, int ldc, long long stride_c, int count,
    cublasComputeType_t compute, cublasGemmAlgo_t algorithm)
{
    return cublasGemmStridedBatchedEx_64(handle, transa, transb, m, n, k,
                                         alpha, a, a_type, lda, stride_a,
                                         b, b_type, ldb, stride_b,
                                         beta, c, c_type, ldc, stride_c, count, compute, algorithm);
}

cublasStatus_t cublasGemmEx_64(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
    int64_t m, int64_t n, int64_t k,
    const void *alpha, const void *a, cudaDataType a_type, int64_t lda,
    const void *b, cudaDataType b_type, int64_t ldb,
    const void *beta, void *c, cudaDataType c_type, int64_t ldc,
    cublasComputeType_t compute, cublasGemmAlgo_t algorithm)
{
    return cublasGemmStridedBatchedEx_64(handle, transa, transb, m, n, k, alpha, a, a_type, lda, 0,
                                         b, b_type, ldb, 0, beta, c, c_type, ldc, 0, 1, compute,
                                         algorithm);
}

cublasStatus_t cublasGemmEx(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k,
    const void *alpha, const void *a, cudaDataType a_type, int lda,
    const void *b, cudaDataType b_type, int ldb,
    const void *beta, void *c, cudaDataType c_type, int ldc,
    cublasComputeType_t compute, cublasGemmAlgo_t algorithm)
{
    return cublasGemmEx_64(handle, transa, transb, m, n, k, alpha, a, a_type, lda, b, b_type, ldb,
                           beta, c, c_type, ldc, compute, algorithm);
}
/* clang-format on */
