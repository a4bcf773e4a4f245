/* Products of bf16 operands with sums in float32 on x86-64 processors with AVX512_BF16, by oneDNN's
 * matmul primitive: twice the rate of sgemm, from half the bytes.
 *
 *   out_ij = sum_l a_il b_lj (+ out_ij),   rounded once if out is bf16
 *
 * A transpose is a pair of strides, and a step of 0 is a batch axis of size 1, which oneDNN
 * broadcasts. Each call describes the product, in a few microseconds; oneDNN's own cache has the
 * code, which takes up to milliseconds to generate for a shape's first product. */
#include "ops/cpu/products/onednn.h"

#ifdef USES_ONEDNN

#include <dnnl.h>
#include <omp.h>
#include <signal.h>

enum { A, B, OUT, MATRICES };

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
           describe(&matrices[OUT], out_type, piece.count, p.out_step, piece.n, piece.m, p.m, 1);
}

/* The generated code; NULL if memory is exhausted. */
static dnnl_primitive_t primitive_for(dnnl_engine_t engine, const dnnl_memory_desc_t *matrices,
                                      bool accumulate)
{
    dnnl_matmul_desc_t product;
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_post_ops_t sum = NULL;
    dnnl_primitive_desc_t description = NULL;
    dnnl_primitive_t primitive = NULL;
    bool good = dnnl_matmul_desc_init(&product, &matrices[A], &matrices[B], NULL, &matrices[OUT]) ==
                dnnl_success;
    if (accumulate)
        good = good && dnnl_primitive_attr_create(&attributes) == dnnl_success &&
               dnnl_post_ops_create(&sum) == dnnl_success &&
               dnnl_post_ops_append_sum(sum, 1) == dnnl_success &&
               dnnl_primitive_attr_set_post_ops(attributes, sum) == dnnl_success;
    if (good && dnnl_primitive_desc_create(&description, &product, attributes, engine, NULL) ==
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
    static const int names[MATRICES] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST };
    void *data[MATRICES] = { (void *)piece.a, (void *)piece.b, piece.out };
    dnnl_exec_arg_t arguments[MATRICES] = { 0 };
    dnnl_stream_t stream = NULL;
    bool good = dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) == dnnl_success;
    for (int i = 0; i < MATRICES && good; i++) {
        arguments[i].arg = names[i];
        good =
            dnnl_memory_create(&arguments[i].memory, &matrices[i], engine, data[i]) == dnnl_success;
    }
    good = good && dnnl_primitive_execute(primitive, stream, MATRICES, arguments) == dnnl_success &&
           dnnl_stream_wait(stream) == dnnl_success;
    for (int i = 0; i < MATRICES; i++)
        dnnl_memory_destroy(arguments[i].memory);
    dnnl_stream_destroy(stream);
    return good;
}

bool multiply_bf16(ProductPiece piece, TensorType out_type, bool accumulate, Product p)
{
    dnnl_memory_desc_t matrices[MATRICES];
    dnnl_engine_t engine = NULL;
    dnnl_primitive_t primitive = NULL;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    omp_set_num_threads(1); /* as in product.c */
    bool good = describe_all(matrices, piece, out_type, p) &&
                dnnl_engine_create(&engine, dnnl_cpu, 0) == dnnl_success;
    if (good)
        primitive = primitive_for(engine, matrices, accumulate);
    good = primitive && execute(engine, primitive, matrices, piece);
    dnnl_primitive_destroy(primitive);
    dnnl_engine_destroy(engine);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return good;
}

#else

/* Not reached: device_has_bf16 is false. */
bool multiply_bf16(ProductPiece piece, TensorType out_type, bool accumulate, Product p)
{
    (void)piece, (void)out_type, (void)accumulate, (void)p;
    return false;
}

#endif
