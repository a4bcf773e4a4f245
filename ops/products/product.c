/* Matrix products on the CPU: oneDNN's sgemm in float on x86-64, packed tiles otherwise. oneDNN has
 * no product in double, and on other processors its sgemm is plain loops.
 *
 * out is cut into one piece per thread, and each thread computes its piece as a product of its own.
 * oneDNN 2.6 is no faster if it splits one product itself, and for long sums into few elements it
 * starts more threads than there are processors. */
#include "ops/elementwise/kernels.h"
#include "ops/products/product.h"
#include "ops/shared/tiles_cpu.h"

#include <omp.h>

#if defined(__x86_64__) && !defined(TAPEGRAD_DOUBLE)
#define USES_ONEDNN
#endif

/* Some rows or columns of out [n, m], and the rows of a or columns of b that they depend on. */
typedef struct Piece {
    Real *out;
    const Real *a, *b;
    int64_t n, m;
} Piece;

#ifdef USES_ONEDNN

#include <dnnl.h>
#include <signal.h>

/* Returns false if memory is exhausted. oneDNN starts no threads, not even where the region that
 * calls this has one; its setting ends with the region. Signals are blocked during the call: some
 * oneDNN kernels point the stack register at a heap workspace, and a signal handler's frame would
 * overwrite the memory before it. */
static bool multiply(Piece piece, bool accumulate, Product p)
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
static void multiply_few_rows(Piece piece, bool accumulate, Product p)
{
    for (int64_t j = 0; j < piece.m; j++)
        for (int64_t i = 0; i < piece.n; i++)
            contribute(TENSOR_REAL, piece.out, i * p.m + j, accumulate,
                       dot(piece.a + i * p.k, piece.b + j * p.k, p.k));
}

static void multiply_many_rows(Piece piece, bool accumulate, Product p)
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

static bool multiply(Piece piece, bool accumulate, Product p)
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

/* One part of product `index`: part of out's rows or columns, whichever are more. */
static Piece piece_of(Real *out, const Real *a, const Real *b, Product p, int64_t index,
                      int64_t part, int64_t parts)
{
    Piece piece = { out + index * p.out_step, a + index * p.a_step, b + index * p.b_step, p.n,
                    p.m };
    const bool by_rows = p.n >= p.m;
    const int64_t size = by_rows ? p.n : p.m;
    const int64_t first = cut(size, part, parts), count = cut(size, part + 1, parts) - first;
    if (by_rows) {
        piece.out += first * p.m;
        piece.a += p.transpose_a ? first : first * p.k;
        piece.n = count;
    } else {
        piece.out += first;
        piece.b += p.transpose_b ? first * p.k : first;
        piece.m = count;
    }
    return piece;
}

/* With at least one product per thread, or little work, each thread computes whole products;
 * otherwise each product is cut into parts. Products that add to a shared out run one after
 * another. */
void product_cpu(const char *operation, Precision precision, Result out, Operand a, Operand b,
                 Product p)
{
    (void)precision;
    const double cost = 500 + 0.015 * (double)(p.n * p.m * p.k); /* nanoseconds per product */
    const int threads = device_threads();
    const int64_t terms = p.out_step == 0 ? p.count : 1, products = p.count / terms;
    const bool small = (double)p.count * cost < LEAST_WORK;
    const int64_t parts = small || products >= threads ? 1 : threads;
    bool good = true;
#pragma omp parallel for schedule(static) reduction(&& : good)                                     \
    num_threads(threads_for(p.count, cost))
    for (int64_t item = 0; item < products * parts; item++)
        for (int64_t term = 0; term < terms; term++) {
            Piece piece =
                piece_of(out.data, a.data, b.data, p, item / parts + term, item % parts, parts);
            if (piece.n > 0 && piece.m > 0)
                good = multiply(piece, out.accumulate || term > 0, p) && good;
        }
    if (!good)
        error_raise("%s: memory is exhausted: the product could not allocate its workspace",
                    operation);
}

/* ------------------------------------------------------------------------------------------- bf16
 * bf16 operands are converted to float, and so is the result if it is bf16. */

/* A workspace with x's count elements in Real, or NULL if they are Real. */
static Tensor *converted(Tape *tape, Operand *x, int64_t count)
{
    if (x->type != TENSOR_BF16)
        return NULL;
    Tensor *workspace = tape_scratch(tape, shape(count));
    cast_cpu(workspace->data, false, x->data, false, count);
    *x = operand_of(workspace);
    return workspace;
}

static void converted_product(Tape *tape, const char *operation, Result out, Operand a, Operand b,
                              Product p)
{
    const int64_t last = p.count - 1, elements = last * p.out_step + p.n * p.m;
    Tensor *a_real = converted(tape, &a, last * p.a_step + p.n * p.k);
    Tensor *b_real = converted(tape, &b, last * p.b_step + p.k * p.m);
    Tensor *out_real = out.type == TENSOR_BF16 ? tape_scratch(tape, shape(elements)) : NULL;
    product_cpu(operation, PRECISION_FLOAT32, out_real ? result_in(out_real) : out, a, b, p);
    if (out_real)
        cast_cpu(out.data, out.accumulate, out_real->data, true, elements);
    tape_scratch_free(tape, out_real);
    tape_scratch_free(tape, b_real);
    tape_scratch_free(tape, a_real);
}

void product(Tape *tape, const char *operation, Result out, Operand a, Operand b, Product size)
{
    if (a.type == TENSOR_BF16 && !device_is_cuda(tape_device(tape)))
        converted_product(tape, operation, out, a, b, size);
    else
        DEVICE_CALL(tape_device(tape), product, (operation, tape_precision(tape), out, a, b, size));
}
