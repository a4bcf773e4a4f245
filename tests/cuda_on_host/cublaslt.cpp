/* cublasLt's descriptors, and its products with epilogues. */
#include "product.h"

#include <chrono>
#include <string.h>
#include <thread>

struct cublasLtContext {
    int device;
};

struct cublasLtMatmulDesc {
    int32_t compute, scale_type, pointers, transposed_a, transposed_b, transposed_c;
    uint32_t epilogue;
    void *bias, *auxiliary;
    int32_t bias_type, auxiliary_type; /* -1: d's type */
    int64_t bias_step, auxiliary_ld, auxiliary_step;
};

struct cublasLtMatrixLayout {
    uint32_t type;
    int32_t order, count;
    uint64_t rows, columns;
    int64_t ld, step;
};

struct cublasLtMatmulPreference {
    uint64_t workspace;
};

static std::atomic<unsigned> refused_epilogues;

void tapegrad_cuda_on_host_refuse_epilogues(unsigned bits)
{
    refused_epilogues = bits;
}

static const uint64_t the_algorithm = 0x7461706567726164;

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    return cublasGetStatusName(status);
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return cublasGetStatusString(status);
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    int count;
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        cudaGetLastError();
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    *handle = new cublasLtContext{ emulation_device() };
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    delete handle;
    return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

/* ---------------------------------------------------------------------------------- descriptors */
template <typename T> static cublasStatus_t set(T *field, const void *value, size_t size)
{
    if (!value || size != sizeof *field)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(field, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale_type)
{
    *desc = new cublasLtMatmulDesc();
    (*desc)->compute = compute;
    (*desc)->scale_type = scale_type;
    (*desc)->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    (*desc)->bias_type = (*desc)->auxiliary_type = -1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t size)
{
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
        return set(&desc->compute, value, size);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
        return set(&desc->scale_type, value, size);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
        return set(&desc->pointers, value, size);
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&desc->transposed_a, value, size);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&desc->transposed_b, value, size);
    case CUBLASLT_MATMUL_DESC_TRANSC:
        return set(&desc->transposed_c, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(&desc->epilogue, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&desc->bias, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
        return set(&desc->bias_step, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return set(&desc->bias_type, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return set(&desc->auxiliary, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return set(&desc->auxiliary_ld, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE:
        return set(&desc->auxiliary_step, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
        return set(&desc->auxiliary_type, value, size);
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    delete desc;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    *layout = new cublasLtMatrixLayout{ (uint32_t)type, CUBLASLT_ORDER_COL, 1, rows, cols, ld, 0 };
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t size)
{
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
        return set(&layout->type, value, size);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
        return set(&layout->order, value, size);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
        return set(&layout->rows, value, size);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
        return set(&layout->columns, value, size);
    case CUBLASLT_MATRIX_LAYOUT_LD:
        return set(&layout->ld, value, size);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return set(&layout->count, value, size);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        return set(&layout->step, value, size);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    *preference = new cublasLtMatmulPreference();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t size)
{
    uint32_t ignored;
    return attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
               ? set(&preference->workspace, value, size)
               : set(&ignored, value, size);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    delete preference;
    return CUBLAS_STATUS_SUCCESS;
}

/* ------------------------------------------------------------------------------------- products */
static Matrix matrix_of(const void *data, const cublasLtMatrixLayout *layout, bool transposed)
{
    return { data, (cudaDataType_t)layout->type, transposed, layout->ld, layout->step };
}

/* Checks the types and alignments that the documentation of the attributes demands. */
static cublasStatus_t check_epilogue(const cublasLtMatmulDesc *desc, const Product &p)
{
    const unsigned relu = 2 | 8, auxiliary = 128;
    switch (desc->epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_RELU_AUX:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_RELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DRELU:
    case CUBLASLT_EPILOGUE_DRELU_BGRAD:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB:
        break;
    default:
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (desc->epilogue != CUBLASLT_EPILOGUE_DEFAULT &&
        (p.d.type == CUDA_R_64F || p.bias.type != p.d.type))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (desc->epilogue & auxiliary) {
        const int64_t step = desc->epilogue & relu ? 128 : 8;
        if (desc->auxiliary_ld < p.m || desc->auxiliary_ld % step != 0 ||
            desc->auxiliary_step % step != 0 || (uintptr_t)desc->auxiliary % 16 != 0)
            return CUBLAS_STATUS_INVALID_VALUE;
        if (!(desc->epilogue & relu) && p.auxiliary.type != p.d.type)
            return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_layouts(const cublasLtMatmulDesc *desc, const Product &p,
                                    const cublasLtMatrixLayout *a, const cublasLtMatrixLayout *b,
                                    const cublasLtMatrixLayout *c, const cublasLtMatrixLayout *d)
{
    if (a->order || b->order || c->order || d->order || desc->transposed_c ||
        desc->pointers != CUBLASLT_POINTER_MODE_HOST)
        return CUBLAS_STATUS_NOT_SUPPORTED; /* by this emulation */
    if ((int64_t)(p.a.transposed ? a->columns : a->rows) != p.m ||
        (int64_t)(p.b.transposed ? b->columns : b->rows) != p.k ||
        (int64_t)(p.b.transposed ? b->rows : b->columns) != p.n || c->rows != d->rows ||
        c->columns != d->columns || a->count != d->count || b->count != d->count ||
        c->count != d->count)
        return CUBLAS_STATUS_INVALID_VALUE;
    const bool double_scale = desc->scale_type == CUDA_R_64F;
    if (double_scale != (p.d.type == CUDA_R_64F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    const cublasStatus_t status = product_check(p);
    return status == CUBLAS_STATUS_SUCCESS ? check_epilogue(desc, p) : status;
}

/* The product without its operands. */
static Product product_of(const cublasLtMatmulDesc *desc, const cublasLtMatrixLayout *a,
                          const cublasLtMatrixLayout *b, const cublasLtMatrixLayout *c,
                          const cublasLtMatrixLayout *d)
{
    Product p = {};
    p.a = matrix_of(NULL, a, desc->transposed_a != CUBLAS_OP_N);
    p.b = matrix_of(NULL, b, desc->transposed_b != CUBLAS_OP_N);
    p.c = matrix_of(NULL, c, false);
    p.d = matrix_of(NULL, d, false);
    p.m = (int64_t)d->rows;
    p.n = (int64_t)d->columns;
    p.k = (int64_t)(p.a.transposed ? a->rows : a->columns);
    p.count = d->count;
    p.compute = (cublasComputeType_t)desc->compute;
    p.epilogue = desc->epilogue;
    p.bias = { desc->bias, desc->bias_type < 0 ? p.d.type : (cudaDataType_t)desc->bias_type, false,
               1, desc->bias_step };
    p.auxiliary = { desc->auxiliary,
                    desc->auxiliary_type < 0 ? p.d.type : (cudaDataType_t)desc->auxiliary_type,
                    false, desc->auxiliary_ld, desc->auxiliary_step };
    return p;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *found)
{
    *found = 0;
    emulation_counts.heuristics++;
    std::this_thread::sleep_for(std::chrono::microseconds(50)); /* as on a machine with a GPU */
    if (!handle || !preference || wanted < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (desc->epilogue & refused_epilogues)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    const cublasStatus_t status = check_layouts(desc, product_of(desc, a, b, c, d), a, b, c, d);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    memset(&results[0], 0, sizeof results[0]);
    results[0].algo.data[0] = the_algorithm;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_size, cudaStream_t stream)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (handle->device != emulation_device())
        return CUBLAS_STATUS_EXECUTION_FAILED;
    Product p = product_of(desc, a_layout, b_layout, c_layout, d_layout);
    const cublasStatus_t status = check_layouts(desc, p, a_layout, b_layout, c_layout, d_layout);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (algo && algo->data[0] != the_algorithm)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (workspace_size > 0)
        emulation_check_memory("cublasLtMatmul", "the workspace", workspace, workspace_size,
                               handle->device);
    p.a.data = a;
    p.b.data = b;
    p.c.data = c;
    p.d.data = d;
    p.alpha = product_scale(p.compute, alpha);
    p.beta = product_scale(p.compute, beta);
    return product_enqueue("cublasLtMatmul", p, stream);
}
