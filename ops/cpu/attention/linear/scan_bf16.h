/* The scan of linear attention over the rows of a chunk by bf16 products, on processors that have
 * them (AVX512_BF16): an instruction multiplies pairs of bf16 elements and adds both products to a
 * float32 sum, twice the rate of float32 arithmetic.
 *
 *     o <- o + X T + tril(X Y^T) W     T <- T + Y^T W
 *
 * X, Y, W, T and X Y^T are rounded to bf16 for the products; T, a sum over all positions, stays
 * float32. An earlier row never multiplies a later one, even by 0: 0 times NaN is NaN. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_BF16_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_BF16_CPU_H

#include "ops/cpu/attention/linear/prefetch.h"

/* X Y^T of a longer chunk would take too much memory. */
enum { BF16_MAX_CHUNK = 256 };

#if defined(__AVX512BF16__) && !defined(TAPEGRAD_DOUBLE)

#include <immintrin.h>

enum { HAS_BF16_PRODUCTS = true };

/* Two bf16 elements, which one instruction multiplies by those of another pair: the terms 2k and
 * 2k + 1 of a product. */
typedef uint32_t Pair;

/* A chunk's operands in a workspace. */
typedef struct Bf16Chunk {
    int64_t rows, Y, W; /* rows: positions up to a multiple of UNIT */
    Pair *x;            /* [rows, Y / 2]: pairs of neighbouring columns */
    Pair *y_t;          /* [Y / 2, rows]: likewise, transposed */
    Pair *weights;      /* [rows, rows / 2]: X Y^T, pairs of neighbouring columns */
    Pair *y, *w;        /* [rows / 2, Y or W]: pairs of neighbouring rows */
    Pair *T;            /* [Y / 2, W]: likewise */
} Bf16Chunk;

/* Assigns the operands in a workspace, or NULL; returns its size. */
static int64_t allocate_bf16_chunk(Bf16Chunk *chunk, Real *workspace)
{
    const int64_t rows = chunk->rows, Y = chunk->Y, W = chunk->W;
    int64_t used = 0;
    chunk->x = (Pair *)allocate(workspace, &used, rows * Y / 2);
    chunk->y_t = (Pair *)allocate(workspace, &used, rows * Y / 2);
    chunk->weights = (Pair *)allocate(workspace, &used, rows * rows / 2);
    chunk->y = (Pair *)allocate(workspace, &used, rows * Y / 2);
    chunk->w = (Pair *)allocate(workspace, &used, rows * W / 2);
    chunk->T = (Pair *)allocate(workspace, &used, Y * W / 2);
    return used;
}

static int64_t bf16_workspace(int64_t rows, int64_t widest)
{
    return allocate_bf16_chunk(
        &(Bf16Chunk){ .rows = round_up(rows, UNIT), .Y = widest, .W = widest }, NULL);
}

/* The numbers of low, then those of high, as bf16. */
ALWAYS_INLINE __m512i bf16_of_two(Vector low, Vector high)
{
    return (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
}

/* to [n / 2] = from [n], pairs of neighbours; n is a multiple of 2 LANES */
WHOLE_VECTORS static void pair_columns(Pair *to, const Real *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += 2 * LANES)
        _mm512_store_si512(to + i / 2, bf16_of_two(vector(from + i), vector(from + i + LANES)));
}

/* to [LANES] = the pairs (even, odd) */
ALWAYS_INLINE void pair_vectors(Pair *to, Vector even, Vector odd)
{
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    _mm512_store_si512(to, _mm512_permutexvar_epi16(order, bf16_of_two(even, odd)));
}

/* to [rows / 2, columns] = from [count, columns], pairs of neighbouring rows; missing ones: 0. */
WHOLE_VECTORS static void pair_rows(Pair *to, const Real *from, int64_t count, int64_t rows,
                                    int64_t columns)
{
    const Vector zero = { 0 };
    int64_t r = 0;
    for (; r + 1 < count; r += 2, from += 2 * columns, to += columns)
        for (int64_t c = 0; c < columns; c += LANES)
            pair_vectors(to + c, vector(from + c), vector(from + columns + c));
    for (; r < rows; r += 2, from += 2 * columns, to += columns)
        for (int64_t c = 0; c < columns; c += LANES)
            pair_vectors(to + c, r < count ? vector(from + c) : zero, zero);
}

/* Transposes 16 x 16 pairs: swaps the off-diagonal blocks of 8 x 8, in each block those of 4 x 4,
 * and so on. */
ALWAYS_INLINE void transpose_block(__m512i rows[LANES])
{
    const Mask lane = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
#pragma GCC unroll 4
    for (int size = LANES / 2; size > 0; size /= 2) {
        const Mask upper = lane + (((lane & size) != 0) & (LANES - size)), lower = upper + size;
#pragma GCC unroll 16
        for (int r = 0; r < LANES; r++)
            if (!(r & size)) {
                const __m512i a = rows[r], b = rows[r + size];
                rows[r] = _mm512_permutex2var_epi32(a, (__m512i)upper, b);
                rows[r + size] = _mm512_permutex2var_epi32(a, (__m512i)lower, b);
            }
    }
}

/* to [columns / 2, rows] = the transpose of from [rows, columns] in pairs of neighbouring
 * columns */
WHOLE_VECTORS static void pair_columns_transposed(Pair *to, const Real *from, int64_t rows,
                                                  int64_t columns)
{
    for (int64_t r = 0; r < rows; r += LANES)
        for (int64_t c = 0; c < columns; c += 2 * LANES) {
            const Real *block = from + r * columns + c;
            const bool whole = c + 2 * LANES <= columns;
            __m512i pairs[LANES];
            for (int i = 0; i < LANES; i++, block += columns)
                pairs[i] =
                    bf16_of_two(vector(block), whole ? vector(block + LANES) : (Vector){ 0 });
            transpose_block(pairs);
            for (int i = 0; i < (whole ? LANES : LANES / 2); i++)
                _mm512_store_si512(to + (c / 2 + i) * rows + r, pairs[i]);
        }
}

ALWAYS_INLINE __m512i pairs_at(const Pair *pairs)
{
    return _mm512_load_si512(pairs);
}

ALWAYS_INLINE __m512i lower_half(const Pair *pairs)
{
    return _mm512_and_si512(pairs_at(pairs), _mm512_set1_epi32(0xffff));
}

/* sum + a_0 b_0 + a_1 b_1 for a pair a and LANES pairs b */
ALWAYS_INLINE Vector multiply_add(Vector sum, Pair a, __m512i b)
{
    return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)a), (__m512bh)b);
}

/* sum += A B of pairs, ROWS rows by some vectors of columns. Pair (r, k) of A is stored at
 * r a_row + k a_column, (k, c) of B at k b_row + c. */
ALWAYS_INLINE void add_pairs(int vectors, Vector sum[ROWS][2], const Pair *a, int64_t a_row,
                             int64_t a_column, const Pair *b, int64_t b_row, int64_t inner)
{
    for (int64_t k = 0; k < inner; k++, a += a_column, b += b_row)
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < vectors; v++)
                sum[r][v] = multiply_add(sum[r][v], a[r * a_row], pairs_at(b + v * LANES));
}

ALWAYS_INLINE void load_accumulators(int vectors, Vector sum[ROWS][2], const Real *from,
                                     int64_t columns)
{
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++)
            sum[r][v] = vector(from + r * columns + v * LANES);
}

ALWAYS_INLINE void store_tile(int vectors, Real *to, Vector sum[ROWS][2], int64_t columns)
{
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++)
            *at_vector(to + r * columns + v * LANES) = sum[r][v];
}

/* weights = X Y^T, as far as columns of earlier positions and the row's own. */
WHOLE_VECTORS static void find_weights(const Bf16Chunk *chunk)
{
    const int64_t rows = chunk->rows, Y = chunk->Y;
    for (int64_t i = 0; i < rows; i += ROWS)
        for (int64_t j = 0; j < i + ROWS; j += LANES) {
            Vector sum[ROWS][2] = { { { 0 } } };
            add_pairs(1, sum, chunk->x + i * Y / 2, Y / 2, 1, chunk->y_t + j, rows, Y / 2);
            for (int r = 0; r < ROWS; r++)
                _mm256_store_si256((void *)(chunk->weights + (i + r) * rows / 2 + j / 2),
                                   (__m256i)_mm512_cvtneps_pbh((__m512)sum[r][0]));
        }
}

/* o_i <- o_i + T^T x_i + sum_{j<=i} weights_ij w_j for the ROWS positions i from `before` on, in
 * some vectors of columns from c on; first: T is 0 */
ALWAYS_INLINE void add_outputs(int vectors, Real *o, const Bf16Chunk *chunk, int64_t before,
                               int64_t c, bool first)
{
    const int64_t half = chunk->rows / 2, Y = chunk->Y, W = chunk->W;
    const Pair *weights = chunk->weights + before * half, *w = chunk->w + c;
    Vector sum[ROWS][2];
    o += before * W + c;
    load_accumulators(vectors, sum, o, W);
    if (!first)
        add_pairs(vectors, sum, chunk->x + before * Y / 2, Y / 2, 1, chunk->T + c, W, Y / 2);
    add_pairs(vectors, sum, weights, half, 1, w, W, before / 2);
    /* The triangle: pairs of two earlier positions, or one and the row's own ... */
    weights += before / 2;
    w += before / 2 * W;
    for (int k = 0; k < ROWS / 2; k++)
        for (int r = 2 * k + 1; r < ROWS; r++)
            for (int v = 0; v < vectors; v++)
                sum[r][v] =
                    multiply_add(sum[r][v], weights[r * half + k], pairs_at(w + k * W + v * LANES));
    /* ... and of an even row its own position alone, the lower half of a pair. */
    for (int r = 0; r < ROWS; r += 2)
        for (int v = 0; v < vectors; v++)
            sum[r][v] = multiply_add(sum[r][v], weights[r * half + r / 2] & 0xffff,
                                     lower_half(w + r / 2 * W + v * LANES));
    store_tile(vectors, o, sum, W);
}

/* T <- T + Y^T W, ROWS rows from r on of some vectors of columns from c on */
ALWAYS_INLINE void update_state(int vectors, Real *T, const Bf16Chunk *chunk, int64_t r, int64_t c)
{
    const int64_t W = chunk->W;
    Vector sum[ROWS][2];
    load_accumulators(vectors, sum, T + r * W + c, W);
    add_pairs(vectors, sum, chunk->y + r, 1, chunk->Y, chunk->w + c, W, chunk->rows / 2);
    store_tile(vectors, T + r * W + c, sum, W);
}

/* The scan in some vectors of columns from c on, which prefetches its share of rows. */
ALWAYS_INLINE void scan_columns(int vectors, Real *o, Real *T, const Bf16Chunk *chunk, int64_t c,
                                bool first, bool last, const Prefetch *next)
{
    const int64_t tiles = (chunk->rows + (last ? 0 : chunk->Y)) / ROWS, width = vectors * LANES;
    const int64_t parts = tiles * chunk->W;
    int64_t part = tiles * c;
    for (int64_t i = 0; i < chunk->rows; i += ROWS, part += width) {
        prefetch_parts(next, chunk->rows, part, part + width, parts);
        add_outputs(vectors, o, chunk, i, c, first);
    }
    for (int64_t r = 0; !last && r < chunk->Y; r += ROWS, part += width) {
        prefetch_parts(next, chunk->rows, part, part + width, parts);
        update_state(vectors, T, chunk, r, c);
    }
}

/* o <- o + X T + tril(X Y^T) W     T <- T + Y^T W
 * first: T is 0; last: T is not needed after */
WHOLE_VECTORS static void scan_by_bf16_products(Real *workspace, const Real *x, const Real *y,
                                                const Real *w, Real *o, Real *T, int64_t count,
                                                int64_t Y, int64_t W, bool first, bool last,
                                                const Prefetch *next)
{
    Bf16Chunk chunk = { .rows = round_up(count, UNIT), .Y = Y, .W = W };
    allocate_bf16_chunk(&chunk, workspace);
    pair_columns(chunk.x, x, chunk.rows * Y);
    pair_columns_transposed(chunk.y_t, y, chunk.rows, Y);
    find_weights(&chunk);
    pair_rows(chunk.w, w, count, chunk.rows, W);
    if (!last)
        pair_rows(chunk.y, y, count, chunk.rows, Y);
    if (!first)
        pair_rows(chunk.T, T, Y, Y, W);
    int64_t c = 0;
    for (; c + 2 * LANES <= W; c += 2 * LANES)
        scan_columns(2, o, T, &chunk, c, first, last, next);
    if (c < W)
        scan_columns(1, o, T, &chunk, c, first, last, next);
}

#else /* the plan never chooses these */
enum { HAS_BF16_PRODUCTS = false };
#define bf16_workspace(rows, widest) 0
#define scan_by_bf16_products(...) ((void)0)
#endif
#endif
