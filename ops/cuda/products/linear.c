/* The products of a linear layer by cublasLt, with epilogues that add the bias and apply
 * the activation.
 *
 * cublasLt is column-major and therefore computes out^T = b^T a^T: our b is its A, our a its B, and
 * the bias has one element per row of its D. */
#include "ops/cuda/products/blas.h"
#include "ops/cuda/products/linear.h"
#include "ops/kernels.h"
#include "ops/shared/columns.h"
#include "tensor/cuda/cuda.h"
#include "tensor/internal.h"

#include <pthread.h>
#include <string.h>

typedef struct Epilogue {
    Activation activation;
    const Real *bias; /* [m], dtype of out */
    void *saved;      /* gelu: y [n, m], written unless NULL */
} Epilogue;

typedef struct FusedProduct {
    Precision precision;
    Result out;
    Operand a, b;
    Product size;
    Epilogue epilogue;
} FusedProduct;

/* CUBLASLT_EPILOGUE_DEFAULT: no suitable epilogue. cublasLt's gelu is the tanh approximation, of
 * undocumented accuracy, so it does not serve PRECISION_FLOAT32. */
static cublasLtEpilogue_t epilogue_of(const FusedProduct *p)
{
    const Activation activation = p->epilogue.activation;
    if (activation == ACTIVATION_NONE)
        return CUBLASLT_EPILOGUE_BIAS;
    if (activation == ACTIVATION_RELU)
        return CUBLASLT_EPILOGUE_RELU_BIAS;
    if (activation == ACTIVATION_GELU_TANH && p->precision != PRECISION_FLOAT32)
        return p->epilogue.saved ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_BIAS;
    return CUBLASLT_EPILOGUE_DEFAULT;
}

/* cublasLt's descriptors of one product, and the first error. */
typedef struct Description {
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, out; /* cublasLt's A and B */
    cublasLtMatmulPreference_t preference;
    cublasStatus_t status;
} Description;

static void record_status(Description *d, cublasStatus_t status)
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

/* The alignment of the address in bytes: a power of two, at most 32, that of weights in bf16 in
 * their Params. So the algorithm does not depend on where a weight is. */
static uint32_t alignment(const void *data)
{
    const uintptr_t address = (uintptr_t)data | 32;
    return (uint32_t)(address & -address);
}

static void describe_product(Description *d, const FusedProduct *p, cublasLtEpilogue_t epilogue)
{
    const int32_t a = p->size.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t b = p->size.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int64_t ld = p->size.m;
    const Epilogue *e = &p->epilogue;
    record_status(d, cublasLtMatmulDescCreate(&d->product, blas_compute_type(p->precision),
                                              blas_type(TENSOR_REAL)));
    set(d, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a);
    set(d, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b);
    set(d, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    set(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &e->bias, sizeof e->bias);
    if (e->saved) {
        set(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &e->saved, sizeof e->saved);
        set(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof ld);
    }
}

/* A row-major matrix [rows, columns], which column-major is its transpose. */
static void describe_matrix(Description *d, cublasLtMatrixLayout_t *layout, TensorType type,
                            int64_t rows, int64_t columns)
{
    record_status(d, cublasLtMatrixLayoutCreate(layout, blas_type(type), (uint64_t)columns,
                                                (uint64_t)rows, columns));
}

static void describe_matrices(Description *d, const FusedProduct *p)
{
    const Product *s = &p->size;
    describe_matrix(d, &d->a, p->b.type, s->transpose_b ? s->m : s->k,
                    s->transpose_b ? s->k : s->m);
    describe_matrix(d, &d->b, p->a.type, s->transpose_a ? s->k : s->n,
                    s->transpose_a ? s->n : s->k);
    describe_matrix(d, &d->out, p->out.type, s->n, s->m);
}

/* The workspace's size and the alignment of the matrices; the default assumes 256 bytes. */
static void describe_preference(Description *d, const FusedProduct *p)
{
    const uint64_t workspace = BLAS_WORKSPACE_BYTES;
    const uint32_t a = alignment(p->b.data), b = alignment(p->a.data);
    const uint32_t out = alignment(p->out.data);
    record_status(d, cublasLtMatmulPreferenceCreate(&d->preference));
    prefer(d, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    prefer(d, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a);
    prefer(d, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b);
    prefer(d, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &out, sizeof out);
    prefer(d, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &out, sizeof out);
}

/* ------------------------------------------------------------------------------------- algorithms
 * The heuristic takes 10 to 50 microseconds, so each device caches its last results. */
/* All inputs of the heuristic; of one type, so without padding. */
typedef struct HeuristicKey {
    int64_t n, k, m, transpose_a, transpose_b, type_a, type_b, type_out, epilogue, compute;
    int64_t align_a, align_b, align_out, align_bias, align_saved;
} HeuristicKey;

typedef struct CachedAlgorithm {
    HeuristicKey key;
    bool found; /* an algorithm exists */
    cublasLtMatmulAlgo_t algorithm;
} CachedAlgorithm;

enum { CACHE_SIZE = 256 };

static struct {
    CachedAlgorithm all[CACHE_SIZE];
    int64_t count; /* of all results so far; a new one replaces the oldest */
} cache[CUDA_MAX_DEVICES];
static pthread_mutex_t cache_lock = PTHREAD_MUTEX_INITIALIZER; /* nothing raises under it */

static HeuristicKey heuristic_key(const FusedProduct *p, cublasLtEpilogue_t epilogue)
{
    const Product *s = &p->size;
    return (HeuristicKey){ .n = s->n,
                           .k = s->k,
                           .m = s->m,
                           .transpose_a = s->transpose_a,
                           .transpose_b = s->transpose_b,
                           .type_a = p->a.type,
                           .type_b = p->b.type,
                           .type_out = p->out.type,
                           .epilogue = (int64_t)epilogue,
                           .compute = (int64_t)blas_compute_type(p->precision),
                           .align_a = alignment(p->a.data),
                           .align_b = alignment(p->b.data),
                           .align_out = alignment(p->out.data),
                           .align_bias = alignment(p->epilogue.bias),
                           .align_saved = alignment(p->epilogue.saved) };
}

static bool refused(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
           status == CUBLAS_STATUS_ARCH_MISMATCH;
}

/* The cached or new result of the heuristic; NULL after an error. */
static CachedAlgorithm *find_algorithm(Description *d, const Blas *blas, const FusedProduct *p,
                                       HeuristicKey key)
{
    const int64_t count = cache[cuda_index()].count;
    CachedAlgorithm *all = cache[cuda_index()].all;
    for (int64_t i = 0; i < CACHE_SIZE && i < count; i++)
        if (memcmp(&all[i].key, &key, sizeof key) == 0)
            return &all[i];
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    describe_preference(d, p);
    if (d->status == CUBLAS_STATUS_SUCCESS)
        d->status = cublasLtMatmulAlgoGetHeuristic(blas->light, d->product, d->a, d->b, d->out,
                                                   d->out, d->preference, 1, &best, &found);
    if (d->status != CUBLAS_STATUS_SUCCESS && !refused(d->status))
        return NULL;
    CachedAlgorithm *cached = &all[cache[cuda_index()].count++ % CACHE_SIZE];
    *cached = (CachedAlgorithm){ .key = key, .found = found > 0 };
    if (cached->found)
        cached->algorithm = best.algo;
    d->status = CUBLAS_STATUS_SUCCESS;
    return cached;
}

static void multiply(Description *d, const Blas *blas, const FusedProduct *p, HeuristicKey key)
{
    CachedAlgorithm *cached = find_algorithm(d, blas, p, key);
    if (d->status != CUBLAS_STATUS_SUCCESS)
        return;
    const Real one = 1, beta = p->out.accumulate;
    if (cached->found)
        d->status =
            cublasLtMatmul(blas->light, d->product, &one, p->b.data, d->a, p->a.data, d->b, &beta,
                           p->out.data, d->out, p->out.data, d->out, &cached->algorithm,
                           blas->workspace, BLAS_WORKSPACE_BYTES, cuda_stream());
    if (!cached->found || refused(d->status)) {
        cached->found = false;
        d->status = CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

static void destroy_description(Description *d)
{
    if (d->preference)
        cublasLtMatmulPreferenceDestroy(d->preference);
    const cublasLtMatrixLayout_t layouts[] = { d->a, d->b, d->out };
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        if (layouts[i])
            cublasLtMatrixLayoutDestroy(layouts[i]);
    if (d->product)
        cublasLtMatmulDescDestroy(d->product);
}

static bool fused_product(FusedProduct p)
{
    enum { GELU_UNIT = 8 };       /* the row length of the saved y must be a multiple */
    enum { BIAS_ALIGNMENT = 16 }; /* bytes, for vector loads */
    const cublasLtEpilogue_t epilogue = epilogue_of(&p);
    if (epilogue == CUBLASLT_EPILOGUE_DEFAULT || sizeof(Real) == sizeof(double) ||
        (uintptr_t)p.epilogue.bias % BIAS_ALIGNMENT != 0 ||
        (p.epilogue.saved && p.size.m % GELU_UNIT != 0))
        return false;
    const Blas *blas = blas_open();
    Description d = { .status = CUBLAS_STATUS_SUCCESS };
    describe_product(&d, &p, epilogue);
    describe_matrices(&d, &p);
    pthread_mutex_lock(&cache_lock);
    multiply(&d, blas, &p, heuristic_key(&p, epilogue));
    pthread_mutex_unlock(&cache_lock);
    destroy_description(&d);
    if (refused(d.status))
        return false;
    blas_check(d.status);
    return true;
}

/* Returns false and computes nothing if cublasLt has no such product: without a bias, in double
 * precision, for the exact gelu, for gelu in float32; otherwise this depends on GPU, sizes and
 * alignment alone. */
static bool fused_pass(LinearPass p)
{
    if (!p.bias)
        return false;
    return fused_product(
        (FusedProduct){ p.precision,
                        { p.out, p.type, false },
                        { p.x, p.type },
                        { p.weight, p.type },
                        linear_product(&p),
                        { p.activation, p.type == TENSOR_BF16 ? p.bias_copy : p.bias, p.y } });
}

void linear_forward_cuda(const LinearPass *p)
{
    if (fused_pass(*p))
        return;
    product_cuda(p->precision, (Result){ p->y ? p->y : p->out, p->type, false },
                 (Operand){ p->x, p->type }, (Operand){ p->weight, p->type }, linear_product(p));
    if (p->bias)
        linear_activate_cuda(p->type, p->out, p->y, p->bias, p->activation, p->R, p->O);
}

void linear_activate_backward_cuda(TensorType type, Real *h, Gradient dbias, const Real *g,
                                   const Real *y, Activation activation, int64_t R, int64_t O)
{
    Real *partial = device_workspace(row_blocks(R) * O);
    launch_linear_activate_backward(type, h, partial, g, y, activation, R, O);
    if (dbias.data)
        column_sums_cuda(TENSOR_REAL, dbias, partial, row_blocks(R), O);
    device_workspace_free(partial);
}
