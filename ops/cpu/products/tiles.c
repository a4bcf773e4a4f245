/* One thread's matrix product by register tiles.
 *
 *   out_ij (+)= sum_l a_il b_lj
 *
 * A tile of TILE_ROWS rows by TILE_COLUMNS columns of out stays in registers while l runs over at
 * most TERMS terms: every term costs one load per vector of b and one broadcast per row of a.
 * Blocks of a and b are packed first:
 *
 *   b   TERMS by COLUMNS elements, as panels [terms, TILE_COLUMNS], in L2
 *   a   TILE_ROWS by TERMS elements, in L1, which meet every panel of b
 *
 * Few rows of out read b a few times, so that packing b costs more than it saves: whole panels are
 * read in place. */
#include "ops/cpu/shared/storage.h"
#include "ops/cpu/shared/multiply.h"
#include "ops/cpu/shared/packing.h"

/* The tile leaves registers for a vector of b per column and a broadcast. */
#if defined(__AVX512F__)
enum { TILE_ROWS = 14, TILE_VECTORS = 2 };
#elif defined(__AVX__)
enum { TILE_ROWS = 6, TILE_VECTORS = 2 };
#elif defined(__aarch64__)
enum { TILE_ROWS = 12, TILE_VECTORS = 2 };
#else
enum { TILE_ROWS = 6, TILE_VECTORS = 2 };
#endif
enum {
    TILE_COLUMNS = TILE_VECTORS * LANES,
    TERMS = 256,
    COLUMNS = 512,
    MAX_TILES_IN_PLACE = 4,
    A_ROW = TERMS + LINE, /* of packed a; rows 2^n bytes apart would share a set of the cache */
    A_COLUMN = (TILE_ROWS + LANES - 1) / LANES * LANES, /* of packed a, transposed */
    MAX_ROWS = 14,
};

/* ---------------------------------------------------------------------------- the register tile */

/* One tile of a product: c (+)= a b, with a packed. */
typedef struct Tile {
    Gradient c;
    int64_t c_row; /* the stride of its rows */
    const Real *a, *b;
    int64_t b_row, terms;
} Tile;

/* c [rows, vectors LANES] (+)= a b; transposed: a is packed as [terms, rows]. */
ALWAYS_INLINE void multiply_tile(int rows, int vectors, bool transposed, Tile t)
{
    const Gradient c = t.c;
    const Real *restrict a = t.a, *restrict b = t.b;
    const int64_t c_row = t.c_row, b_row = t.b_row;
    const int64_t a_row = transposed ? 1 : A_ROW, a_column = transposed ? A_COLUMN : 1;
    Vector sum[MAX_ROWS][TILE_VECTORS];
    UNROLL(16)
    for (int r = 0; r < rows; r++) {
        UNROLL(2)
        for (int v = 0; v < vectors; v++)
            sum[r][v] = (Vector){ 0 };
    }
    UNROLL(16)
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            __builtin_prefetch(c.data + r * c_row + v * LANES, 1);
    for (int64_t l = 0; l < t.terms; l++, a += a_column, b += b_row) {
        Vector b_l[TILE_VECTORS];
        for (int v = 0; v < vectors; v++)
            __builtin_prefetch(b + AHEAD / 2 * b_row + v * LANES);
        UNROLL(2)
        for (int v = 0; v < vectors; v++)
            b_l[v] = load_vector(TENSOR_REAL, b, v * LANES);
        UNROLL(16)
        for (int r = 0; r < rows; r++) {
            UNROLL(2)
            for (int v = 0; v < vectors; v++)
                sum[r][v] += a[r * a_row] * b_l[v];
        }
    }
    UNROLL(16)
    for (int r = 0; r < rows; r++) {
        UNROLL(2)
        for (int v = 0; v < vectors; v++) {
            Real *c_v = c.data + r * c_row + v * LANES;
            if (c.accumulate)
                sum[r][v] += load_vector(TENSOR_REAL, c_v, 0);
            store_vector(TENSOR_REAL, c_v, 0, sum[r][v]);
        }
    }
}

/* A function for each number of rows, so that the tile's loops are unrolled. */
#define CASE(R)                                                                                    \
    case R:                                                                                        \
        multiply_tile(R, vectors, transposed, t);                                                  \
        break;
ALWAYS_INLINE void multiply_rows(int64_t rows, int vectors, bool transposed, Tile t)
{
    /* clang-format off */
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if !defined(__AVX__) || defined(__AVX512F__)
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14)
#endif
    }
    /* clang-format on */
}

WHOLE_VECTORS static void multiply_panel(int64_t rows, int64_t columns, bool transposed,
                                         const Tile *t)
{
    if (columns > LANES && transposed)
        multiply_rows(rows, 2, true, *t);
    else if (columns > LANES)
        multiply_rows(rows, 2, false, *t);
    else if (transposed)
        multiply_rows(rows, 1, true, *t);
    else
        multiply_rows(rows, 1, false, *t);
}

/* -------------------------------------------------------------------------------------- packing */
/* to [terms, TILE_COLUMNS] = the transpose of from [columns, terms], padded with zeros. */
WHOLE_VECTORS static void pack_transposed(Real *restrict to, const Real *restrict from,
                                          int64_t stride, int64_t columns, int64_t terms)
{
    for (int64_t c = 0; c < columns; c += LANES)
        for (int64_t l = 0; l < terms; l += LANES) {
            const int64_t left = minimum(LANES, terms - l), n = minimum(LANES, columns - c);
            Real *to_l = to + l * TILE_COLUMNS + c;
            const Real *from_c = from + c * stride + l;
            if (n == LANES && left == LANES) {
                Vector x[LANES];
                UNROLL(16)
                for (int i = 0; i < LANES; i++)
                    x[i] = load_vector(TENSOR_REAL, from_c, i * stride);
                transpose_vectors(x);
                UNROLL(16)
                for (int i = 0; i < LANES; i++)
                    *at_vector(to_l + i * TILE_COLUMNS) = x[i];
            } else {
                for (int64_t i = 0; i < left; i++)
                    for (int64_t j = 0; j < LANES; j++)
                        to_l[i * TILE_COLUMNS + j] = j < n ? from_c[j * stride + i] : 0;
            }
        }
}

/* The block [terms, columns] of b from row l and column j on, as panels. */
static void pack_b(Real *to, const Real *b, Product p, int64_t l, int64_t j, int64_t terms,
                   int64_t columns)
{
    for (int64_t c = 0; c < columns; c += TILE_COLUMNS, to += terms * TILE_COLUMNS) {
        const int64_t width = minimum(TILE_COLUMNS, columns - c);
        if (p.transpose_b) {
            pack_transposed(to, b + (j + c) * p.k + l, p.k, width, terms);
        } else {
            const Rows rows = { TENSOR_REAL, b + l * p.m + j + c, p.m, terms, width };
            pack(to, &rows, TILE_COLUMNS, 1, 0);
        }
    }
}

/* rows by terms of a from row i and term l on. */
static void pack_a(Real *to, const Real *a, Product p, int64_t n, int64_t i, int64_t l,
                   int64_t rows, int64_t terms)
{
    if (p.transpose_a) {
        const int64_t width = minimum(A_COLUMN, n - i); /* whole vectors are copied faster */
        const Rows from = { TENSOR_REAL, a + l * p.n + i, p.n, terms, width };
        pack(to, &from, A_COLUMN, 1, 0);
        return;
    }
    for (int64_t r = 0; r < rows; r++) {
        const Real *from = a + (i + r) * p.k + l;
        int64_t c = 0;
        for (; c + LANES <= terms; c += LANES)
            *at_vector(to + r * A_ROW + c) = load_vector(TENSOR_REAL, from, c);
        for (; c < terms; c++)
            to[r * A_ROW + c] = from[c];
    }
}

/* --------------------------------------------------------------------------------------- few rows
 * out = a b^T of one or two rows: transposing b would cost more than the product, so that every
 * element is a dot product. LANES of them are summed at a time. A piece of one or two rows of a
 * larger product is computed by tiles like its other rows: a sum's order does not depend on how the
 * product is divided. */
enum { MAX_DOT_ROWS = 2 };

/* Element i of the result is the sum of x[i]: every step adds the halves of pairs of vectors. */
ALWAYS_INLINE Vector sum_vectors(Vector *x)
{
    UNROLL(4)
    for (int half = LANES / 2; half > 0; half /= 2) {
        UNROLL(8)
        for (int i = 0; i < half; i++)
            x[i] = LOWER(x[i], x[i + half]) + UPPER(x[i], x[i + half]);
    }
    return x[0];
}

/* out [LANES] (+)= a [k] b^T */
ALWAYS_INLINE void multiply_dots(Gradient out, const Real *a, const Real *b, int64_t k)
{
    Vector sum[LANES];
    UNROLL(16)
    for (int i = 0; i < LANES; i++)
        sum[i] = (Vector){ 0 };
    int64_t l = 0;
    for (; l + LANES <= k; l += LANES) {
        UNROLL(16)
        for (int i = 0; i < LANES; i++)
            sum[i] += load_vector(TENSOR_REAL, a, l) * load_vector(TENSOR_REAL, b, i * k + l);
    }
    const Vector sums = sum_vectors(sum);
    for (int i = 0; i < LANES; i++) {
        Real total = sums[i];
        for (int64_t tail = l; tail < k; tail++)
            total += a[tail] * b[i * k + tail];
        contribute(TENSOR_REAL, out.data, i, out.accumulate, total);
    }
}

WHOLE_VECTORS static void multiply_few_rows(ProductPiece piece, bool accumulate, Product p)
{
    for (int64_t i = 0; i < piece.n; i++) {
        const Real *a = piece.a + i * p.k;
        const Gradient out = { piece.out + i * p.m, accumulate };
        int64_t j = 0;
        for (; j + LANES <= piece.m; j += LANES)
            multiply_dots((Gradient){ out.data + j, accumulate }, a, piece.b + j * p.k, p.k);
        for (; j < piece.m; j++)
            contribute(TENSOR_REAL, out.data, j, accumulate, dot(a, piece.b + j * p.k, p.k));
    }
}

/* ---------------------------------------------------------------------------------- the product */

/* The same with columns that are not whole vectors: by way of a buffer. */
static void multiply_edge(int64_t rows, int64_t columns, bool transposed, Tile t)
{
    _Alignas(VECTOR_BYTES) Real sum[MAX_ROWS * TILE_COLUMNS];
    const Gradient c = t.c;
    const int64_t c_row = t.c_row;
    t.c = (Gradient){ sum, false };
    t.c_row = TILE_COLUMNS;
    multiply_panel(rows, columns, transposed, &t);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            contribute(TENSOR_REAL, c.data, i * c_row + j, c.accumulate, sum[i * TILE_COLUMNS + j]);
}

int64_t product_workspace(Product p)
{
    return round_up(minimum(TERMS, p.k) * round_up(minimum(COLUMNS, p.m), TILE_COLUMNS), LINE);
}

void multiply_tiles(ProductPiece piece, bool accumulate, Product p, Real *b_block)
{
    _Alignas(VECTOR_BYTES)
        Real a_block[MAX_ROWS * A_ROW > TERMS * A_COLUMN ? MAX_ROWS * A_ROW : TERMS * A_COLUMN];
    if (p.transpose_b && !p.transpose_a && p.n <= MAX_DOT_ROWS) {
        multiply_few_rows(piece, accumulate, p);
        return;
    }
    const int64_t row_tiles = (piece.n + TILE_ROWS - 1) / TILE_ROWS;
    const bool in_place = !p.transpose_b && row_tiles <= MAX_TILES_IN_PLACE;
    for (int64_t j = 0; j < piece.m; j += COLUMNS)
        for (int64_t l = 0; l < p.k; l += TERMS) {
            const int64_t columns = minimum(COLUMNS, piece.m - j), terms = minimum(TERMS, p.k - l);
            const int64_t whole = in_place ? columns / TILE_COLUMNS * TILE_COLUMNS : 0;
            pack_b(b_block + whole * terms, piece.b, p, l, j + whole, terms, columns - whole);
            for (int64_t tile = 0; tile < row_tiles; tile++) {
                const int64_t i = piece.n * tile / row_tiles;
                const int64_t rows = piece.n * (tile + 1) / row_tiles - i;
                pack_a(a_block, piece.a, p, piece.n, i, l, rows, terms);
                for (int64_t c = 0; c < columns; c += TILE_COLUMNS) {
                    const int64_t width = minimum(TILE_COLUMNS, columns - c);
                    const bool packed = c >= whole;
                    const Tile t = { .c = { piece.out + i * p.m + j + c, accumulate || l > 0 },
                                     .c_row = p.m,
                                     .a = a_block,
                                     .b = packed ? b_block + c * terms : piece.b + l * p.m + j + c,
                                     .b_row = packed ? TILE_COLUMNS : p.m,
                                     .terms = terms };
                    if (width % LANES == 0)
                        multiply_panel(rows, width, p.transpose_a, &t);
                    else
                        multiply_edge(rows, width, p.transpose_a, t);
                }
            }
        }
}
