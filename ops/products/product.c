/* Matrix products on the CPU: oneDNN's sgemm in float on x86-64, packed tiles otherwise. oneDNN has
 * no product in double, and on other processors its sgemm is plain loops. Products of bf16 operands
 * are in product_bf16.c.
 *
 * out is cut into one piece per thread, and each thread computes its piece as a product of its own.
 * oneDNN 2.6 is no faster if it splits one product itself, and for long sums into few elements it
 * starts more threads than there are processors. */
#include "ops/kernels.h"
#include "ops/cpu/products/onednn.h"
#include "ops/cpu/shared/tiles.h"

#include <omp.h>

#ifdef USES_ONEDNN

#include <dnnl.h>
#include <signal.h>

/* Returns false if memory is exhausted. oneDNN starts no threads, not even where the region that
 * calls this has one; its setting ends with the region. Signals are blocked during the call: some
 * oneDNN kernels point the stack register at a heap workspace, and a signal handler's frame would
 * overwrite the memory before it. */
static bool multiply(ProductPiece piece, bool accumulate, Product p)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    omp_set_num_threads(1);
    dnnl_status_t status = dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', piece.n,
                                      piece.m, p.k, 1, piece.a, p.transpose_a ? p.n : p.k, piece.b,
                                      p.transpose_b ? p.k : p.m, accumulate, piece.out, p.m);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status == dnnl_success;
}

#else

/* Rows and columns of a tile of out, the terms that are added to it at a time, and the most rows of
 * a for which transposing b costs more than dot products. */
enum { TILE = 64, TERMS = 128, FEW = 8 };

/* out [rows, columns] <- a b_tile, of which b_tile [terms, columns] is packed. */
WHOLE_VECTORS static void multiply_tile(Gradient out, const Real *a, const Real *b_tile, Product p,
                                        int64_t rows, int64_t terms, int64_t columns)
{
    _Alignas(VECTOR_BYTES) Real a_tile[TILE * TERMS], sum[TILE * TILE] = { 0 };
    const int64_t whole_rows = round_up(rows, ROWS), whole_columns = round_up(columns, LANES);
    if (p.transpose_a) {
        const Rows a_rows = { TENSOR_REAL, a, p.n, terms, rows };
        const int64_t stride = round_up(rows, UNIT);
        pack(a_tile, &a_rows, stride, 1, 0);
        add_product_transposed(sum, a_tile, stride, b_tile, whole_rows, terms, whole_columns);
    } else {
        const Rows a_rows = { TENSOR_REAL, a, p.k, rows, terms };
        const int64_t stride = round_up(terms, LANES);
        pack_tile(a_tile, &a_rows, stride, 1);
        add_product(sum, a_tile, stride, b_tile, whole_rows, terms, whole_columns);
    }
    unpack(TENSOR_REAL, out, p.m, sum, rows, columns, whole_columns, 1, 0);
}

/* out <- a b^T */
static void multiply_few_rows(ProductPiece piece, bool accumulate, Product p)
{
    for (int64_t j = 0; j < piece.m; j++)
        for (int64_t i = 0; i < piece.n; i++)
            contribute(TENSOR_REAL, piece.out, i * p.m + j, accumulate,
                       dot(piece.a + i * p.k, piece.b + j * p.k, p.k));
}

static void multiply_many_rows(ProductPiece piece, bool accumulate, Product p)
{
    _Alignas(VECTOR_BYTES) Real b_tile[TERMS * TILE];
    for (int64_t j = 0; j < piece.m; j += TILE)
        for (int64_t l = 0; l < p.k; l += TERMS) {
            const int64_t columns = minimum(TILE, piece.m - j), terms = minimum(TERMS, p.k - l);
            const Rows b_rows = { TENSOR_REAL, piece.b + l * p.m + j, p.m, terms, columns };
            if (p.transpose_b)
                transpose(b_tile, piece.b + j * p.k + l, p.k, columns, terms,
                          round_up(columns, LANES));
            else
                pack(b_tile, &b_rows, round_up(columns, LANES), 1, 0);
            for (int64_t i = 0; i < piece.n; i += TILE) {
                const Gradient out = { piece.out + i * p.m + j, accumulate || l > 0 };
                const Real *a = piece.a + (p.transpose_a ? l * p.n + i : i * p.k + l);
                multiply_tile(out, a, b_tile, p, minimum(TILE, piece.n - i), terms, columns);
            }
        }
}

static bool multiply(ProductPiece piece, bool accumulate, Product p)
{
    if (piece.n <= FEW && p.transpose_b && !p.transpose_a)
        multiply_few_rows(piece, accumulate, p);
    else
        multiply_many_rows(piece, accumulate, p);
    return true;
}

#endif

/* The start of part `part` of `size` elements: a multiple of a cache line. */
static int64_t cut(int64_t size, int64_t part, int64_t parts)
{
    const int64_t begin = round_up(size * part / parts, LINE);
    return part == parts || begin > size ? size : begin;
}

/* One part of `count` products from `first` on: part of out's rows or columns, whichever are
 * more. */
static ProductPiece piece_of(Result out, Operand a, Operand b, Product p, int64_t first,
                             int64_t count, int64_t part, int64_t parts)
{
    int64_t out_at = first * p.out_step, a_at = first * p.a_step, b_at = first * p.b_step;
    const bool by_rows = p.n >= p.m;
    const int64_t size = by_rows ? p.n : p.m;
    const int64_t begin = cut(size, part, parts), length = cut(size, part + 1, parts) - begin;
    if (by_rows) {
        out_at += begin * p.m;
        a_at += p.transpose_a ? begin : begin * p.k;
    } else {
        out_at += begin;
        b_at += p.transpose_b ? begin * p.k : begin;
    }
    return (ProductPiece){ .out = elements_at((int)out.type, out.data, out_at),
                           .a = elements_at((int)a.type, a.data, a_at),
                           .b = elements_at((int)b.type, b.data, b_at),
                           .n = by_rows ? length : p.n,
                           .m = by_rows ? p.m : length,
                           .count = count };
}

/* With at least one product per thread, or little work, each thread computes whole products;
 * otherwise each product is cut into parts. Products that add to a shared out run one after
 * another. */
void product_cpu(const char *operation, Precision precision, Result out, Operand a, Operand b,
                 Product p)
{
    (void)precision;
    const bool shared = p.out_step == 0, bf16 = a.type == TENSOR_BF16;
    /* Nanoseconds per product. */
    const double cost = 500 + (bf16 ? 0.008 : 0.015) * (double)(p.n * p.m * p.k);
    const bool small = (double)p.count * cost < MIN_WORK;
    const int threads = device_threads();
    const int64_t groups = shared ? 1 : minimum(p.count, threads);
    const int64_t parts = small || groups == threads ? 1 : threads;
    bool good = true;
#pragma omp parallel for schedule(static) reduction(&& : good)                                     \
    num_threads(threads_for(p.count, cost))
    for (int64_t item = 0; item < groups * parts; item++) {
        const int64_t group = item / parts, end = p.count * (group + 1) / groups;
        int64_t first = p.count * group / groups;
        const int64_t at_once = bf16 && !shared ? end - first : 1;
        for (; first < end; first += at_once) {
            const bool accumulate = out.accumulate || (shared && first > 0);
            const ProductPiece piece = piece_of(out, a, b, p, first, at_once, item % parts, parts);
            if (piece.n > 0 && piece.m > 0)
                good = (bf16 ? multiply_bf16(piece, out.type, accumulate, p)
                             : multiply(piece, accumulate, p)) &&
                       good;
        }
    }
    if (!good)
        error_raise("%s: memory is exhausted: the product could not allocate its workspace",
                    operation);
}

/* ------------------------------------------------------------------------------------------- bf16
 * Where the processor has no products of bf16, operands are converted to float, and so is a result
 * in bf16. A sum of products in bf16 is computed in float too, so that it is rounded once. */

/* A workspace with x's count elements in Real. */
static Tensor *converted(Tape *tape, Operand *x, int64_t count)
{
    Tensor *workspace = tape_scratch(tape, shape(count));
    cast_cpu((Gradient){ workspace->data, false }, x->data, false, count);
    *x = operand_of(workspace);
    return workspace;
}

static void product_of_bf16(Tape *tape, const char *operation, Result out, Operand a, Operand b,
                            Product p)
{
    const bool converts = !device_has_bf16(tape_device(tape));
    const bool sums = p.out_step == 0 && p.count > 1;
    const int64_t last = p.count - 1, elements = last * p.out_step + p.n * p.m;
    Tensor *a_real = converts ? converted(tape, &a, last * p.a_step + p.n * p.k) : NULL;
    Tensor *b_real = converts ? converted(tape, &b, last * p.b_step + p.k * p.m) : NULL;
    Tensor *out_real =
        out.type == TENSOR_BF16 && (converts || sums) ? tape_scratch(tape, shape(elements)) : NULL;
    product_cpu(operation, PRECISION_BF16, out_real ? result_in(out_real) : out, a, b, p);
    if (out_real)
        cast_cpu((Gradient){ out.data, out.accumulate }, out_real->data, true, elements);
    tape_scratch_free(tape, out_real);
    tape_scratch_free(tape, b_real);
    tape_scratch_free(tape, a_real);
}

void product(Tape *tape, const char *operation, Result out, Operand a, Operand b, Product size)
{
    if (a.type == TENSOR_BF16 && !device_is_cuda(tape_device(tape)))
        product_of_bf16(tape, operation, out, a, b, size);
    else
        DEVICE_CALL(tape_device(tape), product, (operation, tape_precision(tape), out, a, b, size));
}
