/* Matrix products on the CPU: oneDNN's sgemm in float; plain loops in double, which oneDNN lacks.
 *
 * out is cut into one piece per thread, and each thread computes its piece as a product of its own.
 * oneDNN 2.6 is no faster if it splits one product itself, and for long sums into few elements it
 * starts more threads than there are processors. */
#include "ops/elementwise/kernels.h"
#include "ops/products/product.h"
#include "ops/shared/internal.h"

#include <omp.h>

/* Some rows or columns of out [n, m], and the rows of a or columns of b that they depend on. */
typedef struct Piece {
    Real *out;
    const Real *a, *b;
    int64_t n, m;
} Piece;

#ifndef TAPEGRAD_DOUBLE

#include <dnnl.h>
#include <signal.h>

/* Returns false if memory is exhausted. Signals are blocked during the call: some oneDNN kernels
 * point the stack register at a heap workspace, and a signal handler's frame would overwrite the
 * memory before it. */
static bool multiply(Piece piece, bool accumulate, Product p)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    dnnl_status_t status = dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', piece.n,
                                      piece.m, p.k, 1, piece.a, p.transpose_a ? p.n : p.k, piece.b,
                                      p.transpose_b ? p.k : p.m, accumulate, piece.out, p.m);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status == dnnl_success;
}

#else

enum { TILE = 64 };

static int64_t at_most_tile(int64_t size)
{
    return size < TILE ? size : TILE;
}

/* tile <- rows x columns elements of `from`, at most TILE x TILE, padded with zeros. */
static void load_tile(Real tile[TILE][TILE], const Real *from, int64_t rows, int64_t columns,
                      int64_t row_step, int64_t column_step)
{
    memset(tile, 0, sizeof(Real[TILE][TILE]));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            tile[i][j] = from[i * row_step + j * column_step];
}

/* Computes the piece's tile at row i, column j: sums over k, one tile of a and of b at a time. */
static void multiply_tile(Piece piece, bool accumulate, Product p, int64_t i, int64_t j)
{
    Real sum[TILE][TILE] = { { 0 } }, a_tile[TILE][TILE], b_tile[TILE][TILE];
    int64_t rows = at_most_tile(piece.n - i), columns = at_most_tile(piece.m - j);
    int64_t a_row = p.transpose_a ? 1 : p.k, a_column = p.transpose_a ? p.n : 1;
    int64_t b_row = p.transpose_b ? 1 : p.m, b_column = p.transpose_b ? p.k : 1;
    for (int64_t l = 0; l < p.k; l += TILE) {
        int64_t inner = at_most_tile(p.k - l);
        load_tile(a_tile, piece.a + i * a_row + l * a_column, rows, inner, a_row, a_column);
        load_tile(b_tile, piece.b + l * b_row + j * b_column, inner, columns, b_row, b_column);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t q = 0; q < inner; q++)
                for (int c = 0; c < TILE; c++)
                    sum[r][c] += a_tile[r][q] * b_tile[q][c];
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            contribute(TENSOR_REAL, piece.out, (i + r) * p.m + j + c, accumulate, sum[r][c]);
}

static bool multiply(Piece piece, bool accumulate, Product p)
{
    for (int64_t i = 0; i < piece.n; i += TILE)
        for (int64_t j = 0; j < piece.m; j += TILE)
            multiply_tile(piece, accumulate, p, i, j);
    return true;
}

#endif

/* The start of part `part` of `size` elements: a multiple of a cache line of floats. */
static int64_t cut(int64_t size, int64_t part, int64_t parts)
{
    enum { LINE = 16 };
    int64_t begin = (size * part / parts + LINE - 1) / LINE * LINE;
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

/* With at least one product per thread, each thread computes whole products; otherwise each product
 * is cut into parts. Products that add to a shared out run one after another. */
void product_cpu(const char *operation, Precision precision, Result out, Operand a, Operand b,
                 Product p)
{
    (void)precision;
    const int threads = omp_get_max_threads();
    const int64_t terms = p.out_step == 0 ? p.count : 1, products = p.count / terms;
    const int64_t parts = products >= threads ? 1 : threads;
    bool good = true;
#pragma omp parallel for schedule(static) reduction(&& : good)
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
