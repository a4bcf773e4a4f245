/* Products by oneDNN on x86-64: its sgemm, and on processors with AVX512_BF16 its matmul primitive
 * for bf16 operands. The build leaves this file out without oneDNN (ONEDNN=no), in double, which
 * oneDNN has not, and on other processors, where its sgemm is plain loops.
 *
 * oneDNN 2.6 is no faster if it splits one product itself, and for long sums into few elements it
 * starts more threads than there are processors. */
#include "ops/cpu/shared/multiply.h"
#include "ops/cpu/shared/onednn.h"
#include "tensor/internal.h"

bool multiply_onednn(ProductPiece piece, bool accumulate, Product p)
{
    const sigset_t before = onednn_block_signals();
    omp_set_num_threads(1);
    const dnnl_status_t status = dnnl_sgemm(
        p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', piece.n, piece.m, p.k, 1, piece.a,
        p.transpose_a ? p.n : p.k, piece.b, p.transpose_b ? p.k : p.m, accumulate, piece.out, p.m);
    onednn_restore_signals(before);
    return status == dnnl_success;
}

/* oneDNN generates its kernels in the first product of a kind: of vectors, and of matrices. */
void cpu_prepare_products(void)
{
    float x[64] = { 0 }, out[64];
    const sigset_t before = onednn_block_signals();
    dnnl_sgemm('N', 'N', 1, 1, 1, 1, x, 1, x, 1, 0, out, 1);
    dnnl_sgemm('N', 'N', 8, 8, 8, 1, x, 8, x, 8, 0, out, 8);
    onednn_restore_signals(before);
}

bool cpu_has_bf16(void)
{
    const unsigned required = dnnl_cpu_isa_avx512_core_bf16; /* one bit per extension */
    return ((unsigned)dnnl_get_effective_cpu_isa() & required) == required;
}

/* ------------------------------------------------------------------------------------------- bf16
 *   out_ij = sum_l a_il b_lj (+ bias_j) (+ out_ij),   rounded once if out is bf16
 *
 * At twice the rate of sgemm, from half the bytes. A transpose is a pair of strides, and a step of
 * 0 is a batch axis of size 1, which oneDNN broadcasts. Each call describes the product, in a few
 * microseconds; oneDNN's own cache has the code, which takes up to milliseconds to generate for a
 * shape's first product. */

enum { A, B, OUT, BIAS, MATRICES };

/* A matrix [rows, columns] of each of `count` products, step elements apart. */
static bool describe(dnnl_memory_desc_t *matrix, TensorType type, int64_t count, int64_t step,
                     int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride)
{
    const dnnl_dims_t sizes = { step == 0 ? 1 : count, rows, columns };
    const dnnl_dims_t strides = { step == 0 ? rows * columns : step, row_stride, column_stride };
    const dnnl_data_type_t storage = type == TENSOR_BF16 ? dnnl_bf16 : dnnl_f32;
    return dnnl_memory_desc_init_by_strides(matrix, 3, sizes, storage, strides) == dnnl_success;
}

static bool describe_all(dnnl_memory_desc_t *matrices, ProductPiece piece, TensorType out_type,
                         Product p)
{
    const int64_t a_row = p.transpose_a ? 1 : p.k, a_column = p.transpose_a ? p.n : 1;
    const int64_t b_row = p.transpose_b ? 1 : p.m, b_column = p.transpose_b ? p.k : 1;
    return describe(&matrices[A], TENSOR_BF16, piece.count, p.a_step, piece.n, p.k, a_row,
                    a_column) &&
           describe(&matrices[B], TENSOR_BF16, piece.count, p.b_step, p.k, piece.m, b_row,
                    b_column) &&
           describe(&matrices[OUT], out_type, piece.count, p.out_step, piece.n, piece.m, p.m, 1) &&
           describe(&matrices[BIAS], TENSOR_REAL, piece.count, 0, 1, piece.m, piece.m, 1);
}

/* The generated code; NULL if memory is exhausted. */
static dnnl_primitive_t primitive_for(dnnl_engine_t engine, const dnnl_memory_desc_t *matrices,
                                      bool has_bias, bool accumulate)
{
    dnnl_matmul_desc_t product;
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_post_ops_t sum = NULL;
    dnnl_primitive_desc_t description = NULL;
    dnnl_primitive_t primitive = NULL;
    bool ok =
        dnnl_matmul_desc_init(&product, &matrices[A], &matrices[B],
                              has_bias ? &matrices[BIAS] : NULL, &matrices[OUT]) == dnnl_success;
    if (accumulate)
        ok = ok && dnnl_primitive_attr_create(&attributes) == dnnl_success &&
             dnnl_post_ops_create(&sum) == dnnl_success &&
             dnnl_post_ops_append_sum(sum, 1) == dnnl_success &&
             dnnl_primitive_attr_set_post_ops(attributes, sum) == dnnl_success;
    if (ok && dnnl_primitive_desc_create(&description, &product, attributes, engine, NULL) ==
                  dnnl_success)
        dnnl_primitive_create(&primitive, description);
    dnnl_primitive_desc_destroy(description);
    dnnl_post_ops_destroy(sum);
    dnnl_primitive_attr_destroy(attributes);
    return primitive;
}

static bool execute(dnnl_engine_t engine, dnnl_primitive_t primitive,
                    const dnnl_memory_desc_t *matrices, ProductPiece piece)
{
    static const int names[MATRICES] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                                         DNNL_ARG_BIAS };
    void *data[MATRICES] = { (void *)piece.a, (void *)piece.b, piece.out, (void *)piece.bias };
    const int count = piece.bias ? MATRICES : BIAS;
    dnnl_exec_arg_t arguments[MATRICES] = { 0 };
    dnnl_stream_t stream = NULL;
    bool ok = dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) == dnnl_success;
    for (int i = 0; i < count && ok; i++) {
        arguments[i].arg = names[i];
        ok =
            dnnl_memory_create(&arguments[i].memory, &matrices[i], engine, data[i]) == dnnl_success;
    }
    ok = ok && dnnl_primitive_execute(primitive, stream, count, arguments) == dnnl_success &&
         dnnl_stream_wait(stream) == dnnl_success;
    for (int i = 0; i < MATRICES; i++)
        dnnl_memory_destroy(arguments[i].memory);
    dnnl_stream_destroy(stream);
    return ok;
}

bool multiply_bf16(ProductPiece piece, TensorType out_type, bool accumulate, Product p)
{
    dnnl_memory_desc_t matrices[MATRICES];
    dnnl_engine_t engine = NULL;
    dnnl_primitive_t primitive = NULL;
    const sigset_t before = onednn_block_signals();
    omp_set_num_threads(1);
    bool ok = describe_all(matrices, piece, out_type, p) &&
              dnnl_engine_create(&engine, dnnl_cpu, 0) == dnnl_success;
    if (ok)
        primitive = primitive_for(engine, matrices, piece.bias, accumulate);
    ok = primitive && execute(engine, primitive, matrices, piece);
    dnnl_primitive_destroy(primitive);
    dnnl_engine_destroy(engine);
    onednn_restore_signals(before);
    return ok;
}
