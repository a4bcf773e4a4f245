/* Matrix products on CUDA, by cuBLAS.
 *
 * cuBLAS is column-major, and a row-major matrix read column-major is its transpose. So cuBLAS
 * computes out^T = b^T a^T: the operands swap places, and nothing is transposed in memory. */
#include "ops/cuda/products/blas.h"
#include "ops/kernels.h"

static cublasOperation_t operation_of(bool transpose)
{
    return transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
}

static cublasStatus_t multiply(const Blas *blas, Precision precision, Result out, Operand a,
                               Operand b, Product p)
{
    const Real one = 1, beta = out.accumulate;
    return cublasGemmStridedBatchedEx_64(
        blas->handle, operation_of(p.transpose_b), operation_of(p.transpose_a), p.m, p.n, p.k, &one,
        b.data, blas_type(b.type), p.transpose_b ? p.k : p.m, p.b_step, a.data, blas_type(a.type),
        p.transpose_a ? p.n : p.k, p.a_step, &beta, out.data, blas_type(out.type), p.m, p.out_step,
        p.count, blas_compute_type(precision), CUBLAS_GEMM_DEFAULT);
}

static Operand elements_further(Operand operand, int64_t count)
{
    const size_t bytes = operand.type == TENSOR_BF16 ? sizeof(uint16_t) : sizeof(Real);
    operand.data = (const Real *)((const char *)operand.data + count * (int64_t)bytes);
    return operand;
}

/* Products that add to a shared out run one after another. */
void product_cuda(Precision precision, Result out, Operand a, Operand b, Product p)
{
    const Blas *blas = blas_open();
    const int64_t terms = p.out_step == 0 ? p.count : 1;
    p.count /= terms;
    for (int64_t term = 0; term < terms; term++) {
        blas_check(multiply(blas, precision, out, elements_further(a, term * p.a_step),
                            elements_further(b, term * p.b_step), p));
        out.accumulate = true;
    }
}
