/* Products of matrices on the CPU: oneDNN's in float, plain loops in double (which it lacks). */
#include "ops/product.h"

#include <omp.h>

#ifndef TAPEGRAD_DOUBLE

#include <dnnl.h>

/* False when memory is exhausted. On all threads, or on the caller's alone in a parallel region. */
static bool one_product(Real *out, bool accumulate, const Real *a, const Real *b, Product p)
{
    dnnl_status_t status =
        dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.n, p.m, p.k, 1, a,
                   p.transpose_a ? p.n : p.k, b, p.transpose_b ? p.k : p.m, accumulate, out, p.m);
    return status == dnnl_success;
}

#else

enum { TILE = 64 };

static int64_t at_most_tile(int64_t size)
{
    return size < TILE ? size : TILE;
}

/* tile <- a piece of [rows, columns], rows x columns at most TILE x TILE, zeros beyond. */
static void load_tile(Real tile[TILE][TILE], const Real *piece, int64_t rows, int64_t columns,
                      int64_t row_step, int64_t column_step)
{
    memset(tile, 0, sizeof(Real[TILE][TILE]));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            tile[i][j] = piece[i * row_step + j * column_step];
}

/* The tile of out at row i and column j: sums over k, a tile of a and of b at a time. */
static void out_tile(Real *out, bool accumulate, const Real *a, const Real *b, Product p, int64_t i,
                     int64_t j)
{
    Real sum[TILE][TILE] = { { 0 } }, a_tile[TILE][TILE], b_tile[TILE][TILE];
    int64_t rows = at_most_tile(p.n - i), columns = at_most_tile(p.m - j);
    int64_t a_row = p.transpose_a ? 1 : p.k, a_column = p.transpose_a ? p.n : 1;
    int64_t b_row = p.transpose_b ? 1 : p.m, b_column = p.transpose_b ? p.k : 1;
    for (int64_t l = 0; l < p.k; l += TILE) {
        int64_t inner = at_most_tile(p.k - l);
        load_tile(a_tile, a + i * a_row + l * a_column, rows, inner, a_row, a_column);
        load_tile(b_tile, b + l * b_row + j * b_column, inner, columns, b_row, b_column);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t q = 0; q < inner; q++)
                for (int c = 0; c < TILE; c++)
                    sum[r][c] += a_tile[r][q] * b_tile[q][c];
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            contribute(&out[(i + r) * p.m + j + c], accumulate, sum[r][c]);
}

static bool one_product(Real *out, bool accumulate, const Real *a, const Real *b, Product p)
{
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t i = 0; i < p.n; i += TILE)
        for (int64_t j = 0; j < p.m; j += TILE)
            out_tile(out, accumulate, a, b, p, i, j);
    return true;
}

#endif

/* Many products: each on one thread. Few, or those of a sum: one after the other on all threads,
 * and in no parallel region: threads of a region within another one, even within one of a single
 * thread, are started anew each time. */
static bool product_cpu(Real *out, bool accumulate, const Real *a, const Real *b, Product p)
{
    bool sum = p.out_step == 0 && p.count > 1, good = true;
    if (sum || p.count < omp_get_max_threads()) {
        for (int64_t i = 0; i < p.count && good; i++)
            good = one_product(out + i * p.out_step, accumulate || (sum && i > 0), a + i * p.a_step,
                               b + i * p.b_step, p);
        return good;
    }
#pragma omp parallel for schedule(static) reduction(&& : good)
    for (int64_t i = 0; i < p.count; i++)
        good =
            one_product(out + i * p.out_step, accumulate, a + i * p.a_step, b + i * p.b_step, p) &&
            good;
    return good;
}

void product(Tape *tape, const char *operation, Real *out, bool accumulate, const Real *a,
             const Real *b, Product size)
{
    if (!DEVICE_CALL(tape_device(tape), product, (out, accumulate, a, b, size)))
        tape_error(tape, "%s: memory is exhausted: the product found no room to work in",
                   operation);
}
