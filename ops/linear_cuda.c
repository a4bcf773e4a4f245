/* A linear layer in one pass: a product of cublasLt, which adds the bias and takes the activation
 * before it stores a number (an epilogue).
 *
 * In matrices stored by columns, as cublasLt has them, out^T [O, R] = weight [O, I] x^T [I, R]: the
 * weight is the first operand, to be transposed, and the bias has a number for each row. */
#include "ops/blas.h"
#include "ops/linear.h"
#include "tensor/cuda.h"

/* The epilogue for an activation; CUBLASLT_EPILOGUE_DEFAULT: there is none. cublasLt's gelu is the
 * approximation by tanh. */
static cublasLtEpilogue_t epilogue_of(const LinearPass *pass)
{
    switch (pass->activation) {
    case ACTIVATION_NONE:
        return CUBLASLT_EPILOGUE_BIAS;
    case ACTIVATION_RELU:
        return CUBLASLT_EPILOGUE_RELU_BIAS;
    case ACTIVATION_GELU_TANH:
        if (pass->precision == PRECISION_FLOAT32)
            break; /* how exact its tanh is, is written nowhere */
        return pass->y ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_BIAS;
    case ACTIVATION_GELU:
        break;
    }
    return CUBLASLT_EPILOGUE_DEFAULT;
}

/* What cublasLt wants to know of a product, and the first error. */
typedef struct Description {
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t weight, x, out;
    cublasLtMatmulPreference_t preference;
    cublasStatus_t status;
} Description;

static void note(Description *d, cublasStatus_t status)
{
    if (d->status == CUBLAS_STATUS_SUCCESS)
        d->status = status;
}

static void set(Description *d, cublasLtMatmulDescAttributes_t attribute, const void *value,
                size_t size)
{
    if (d->status == CUBLAS_STATUS_SUCCESS)
        d->status = cublasLtMatmulDescSetAttribute(d->product, attribute, value, size);
}

static void prefer(Description *d, cublasLtMatmulPreferenceAttributes_t attribute,
                   const void *value, size_t size)
{
    if (d->status == CUBLAS_STATUS_SUCCESS)
        d->status = cublasLtMatmulPreferenceSetAttribute(d->preference, attribute, value, size);
}

/* The largest power of two, up to 256, that the address is a multiple of. */
static uint32_t alignment(const void *data)
{
    const uintptr_t address = (uintptr_t)data | 256;
    return (uint32_t)(address & -address);
}

static void describe_product(Description *d, const LinearPass *pass, cublasLtEpilogue_t epilogue)
{
    const int32_t transposed = CUBLAS_OP_T;
    note(d, cublasLtMatmulDescCreate(&d->product, blas_compute_type(pass->precision),
                                     blas_type(TENSOR_REAL)));
    set(d, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    set(d, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    set(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &pass->bias, sizeof pass->bias);
    if (epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
        set(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &pass->y, sizeof pass->y);
        set(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &pass->O, sizeof pass->O);
    }
}

static void describe_matrices(Description *d, const LinearPass *pass)
{
    const uint64_t R = (uint64_t)pass->R, I = (uint64_t)pass->I, O = (uint64_t)pass->O;
    const cudaDataType_t type = blas_type(pass->type);
    note(d, cublasLtMatrixLayoutCreate(&d->weight, type, I, O, pass->I));
    note(d, cublasLtMatrixLayoutCreate(&d->x, type, I, R, pass->I));
    note(d, cublasLtMatrixLayoutCreate(&d->out, type, O, R, pass->O));
}

/* The workspace's size, and how the matrices are aligned: unasked, it takes 256 bytes for granted. */
static void describe_preference(Description *d, const LinearPass *pass)
{
    const uint64_t workspace = BLAS_WORKSPACE_BYTES;
    const uint32_t a = alignment(pass->weight), b = alignment(pass->x), out = alignment(pass->out);
    note(d, cublasLtMatmulPreferenceCreate(&d->preference));
    prefer(d, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    prefer(d, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a);
    prefer(d, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b);
    prefer(d, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &out, sizeof out);
    prefer(d, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &out, sizeof out);
}

static void multiply(Description *d, const Blas *blas, const LinearPass *pass)
{
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    if (d->status == CUBLAS_STATUS_SUCCESS)
        d->status = cublasLtMatmulAlgoGetHeuristic(blas->light, d->product, d->weight, d->x, d->out,
                                                   d->out, d->preference, 1, &best, &found);
    if (d->status != CUBLAS_STATUS_SUCCESS)
        return;
    const Real one = 1, zero = 0;
    d->status =
        !found ? CUBLAS_STATUS_NOT_SUPPORTED
               : cublasLtMatmul(blas->light, d->product, &one, pass->weight, d->weight, pass->x,
                                d->x, &zero, pass->out, d->out, pass->out, d->out, &best.algo,
                                blas->workspace, BLAS_WORKSPACE_BYTES, cuda_stream());
}

static void forget(Description *d)
{
    if (d->preference)
        cublasLtMatmulPreferenceDestroy(d->preference);
    const cublasLtMatrixLayout_t layouts[] = { d->weight, d->x, d->out };
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        if (layouts[i])
            cublasLtMatrixLayoutDestroy(layouts[i]);
    if (d->product)
        cublasLtMatmulDescDestroy(d->product);
}

/* False, and nothing done, where cublasLt has no such product: always of double numbers, of the exact
 * gelu, and of gelu in float32; which other ones depends on the GPU and the sizes alone. */
bool linear_pass_cuda(LinearPass pass)
{
    enum { AUXILIARY_UNIT = 8 };  /* rows of y, where the epilogue stores it, are a multiple */
    enum { BIAS_ALIGNMENT = 16 }; /* bytes: it may load vectors */
    const cublasLtEpilogue_t epilogue = epilogue_of(&pass);
    if (epilogue == CUBLASLT_EPILOGUE_DEFAULT || sizeof(Real) == sizeof(double) ||
        (uintptr_t)pass.bias % BIAS_ALIGNMENT != 0 ||
        (epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS && pass.O % AUXILIARY_UNIT != 0))
        return false;
    const Blas *blas = blas_open(pass.operation);
    Description d = { .status = CUBLAS_STATUS_SUCCESS };
    describe_product(&d, &pass, epilogue);
    describe_matrices(&d, &pass);
    describe_preference(&d, &pass);
    multiply(&d, blas, &pass);
    forget(&d);
    if (d.status == CUBLAS_STATUS_NOT_SUPPORTED || d.status == CUBLAS_STATUS_INVALID_VALUE ||
        d.status == CUBLAS_STATUS_ARCH_MISMATCH)
        return false;
    blas_check(d.status, pass.operation);
    return true;
}
