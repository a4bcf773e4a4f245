/* Training multiplies many rows at once. Here there may be one: then the product is bound by reading
 * the weight, which must be read once, in the order in which it lies. So for few sequences each sum
 * runs along a row of the weight, in all elements of a vector side by side, for several rows and
 * sequences at a time; what is left to be added up in the end are the vector's elements.
 *
 * With more sequences those last additions, and the reading of x again for every few rows, take
 * longer than the rest. Then x is transposed, so that a vector holds one element of many sequences, and
 * the numbers of the weight multiply one after the other.
 *
 * In both ways the rows that come next are asked for while these are multiplied: rows are too short for
 * the processor to foresee them in time. */
#include "nn/generation/product_cpu.h"

#include "ops/internal.h"
#include "ops/vectors.h"

static int64_t minimum(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ------------------------------------------------------------------------------- few sequences */
enum {
    TILE_ROWS = 4,
    TILE_SEQUENCES = VECTOR_BYTES == 64 ? 4 : 2, /* the sums of a tile stay in registers */
};

ALWAYS_INLINE Vector load(const Real *x)
{
    return *(const UnalignedVector *)(const void *)x;
}

/* The sum of a vector's elements: its upper half is added to its lower, and so on. */
ALWAYS_INLINE Real total(Vector v)
{
    typedef Real Piece __attribute__((vector_size(16), may_alias));
    Piece pieces[VECTOR_BYTES / 16];
    memcpy(pieces, &v, sizeof v);
    for (int half = VECTOR_BYTES / 32; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            pieces[i] += pieces[i + half];
    Real sum = 0;
    for (int i = 0; i < 16 / (int)sizeof(Real); i++)
        sum += pieces[0][i];
    return sum;
}

/* What the columns from `whole` on, too few for a vector, add to a sum. */
ALWAYS_INLINE Real rest(const Real *weight, const Real *x, int64_t whole, int64_t n)
{
    Real sum = 0;
    for (int64_t i = whole; i < n; i++)
        sum += weight[i] * x[i];
    return sum;
}

/* Of some rows of the weight and of x, both numbers known when compiling. */
ALWAYS_INLINE void multiply_rows(int rows, int sequences, const StepProduct *p, int64_t row,
                                 int64_t sequence)
{
    const Real *weight = p->weight + row * p->n, *x = p->x + sequence * p->x_stride;
    const int64_t n = p->n, whole = n / LANES * LANES;
    Vector sums[TILE_ROWS][TILE_SEQUENCES] = { { { 0 } } };
    for (int64_t i = 0; i < whole; i += LANES)
        for (int r = 0; r < rows; r++) {
            __builtin_prefetch(weight + (r + rows) * n + i);
            for (int s = 0; s < sequences; s++)
                sums[r][s] += load(weight + r * n + i) * load(x + s * p->x_stride + i);
        }
    for (int r = 0; r < rows; r++)
        for (int s = 0; s < sequences; s++) {
            Real y = total(sums[r][s]) + rest(weight + r * n, x + s * p->x_stride, whole, n);
            contribute(p->out + (sequence + s) * p->out_stride + row + r, p->add,
                       y + (p->bias ? p->bias[row + r] : 0));
        }
}

ALWAYS_INLINE void multiply_sequences(int rows, const StepProduct *p, int64_t row)
{
    int64_t s = 0;
    for (; s + TILE_SEQUENCES <= p->B; s += TILE_SEQUENCES)
        multiply_rows(rows, TILE_SEQUENCES, p, row, s);
    for (; s + 2 <= p->B; s += 2)
        multiply_rows(rows, 2, p, row, s);
    if (s < p->B)
        multiply_rows(rows, 1, p, row, s);
}

WHOLE_VECTORS static void product_by_rows(const StepProduct *p, int64_t begin, int64_t end)
{
    int64_t row = begin;
    for (; row + TILE_ROWS <= end; row += TILE_ROWS)
        multiply_sequences(TILE_ROWS, p, row);
    for (; row < end; row++)
        multiply_sequences(1, p, row);
}

/* ------------------------------------------------------------------------------ many sequences */
enum { BLOCK = 32 }; /* sequences at a time */

int64_t step_product_buffer(int64_t n)
{
    return (n + ROWS) * BLOCK;
}

/* to [n, columns] = x transposed, of the sequences from first on, and zeros; a cache line of each at
 * a time, for lines that lie as far apart as rows do push each other out of the cache. */
static void transpose_x(Real *to, const StepProduct *p, int64_t first, int64_t columns)
{
    for (int64_t i = 0; i < p->n; i += LINE) {
        const int64_t count = minimum(LINE, p->n - i);
        for (int64_t s = 0; s < columns; s++) {
            const bool there = first + s < p->B;
            const Real *x = p->x + (there ? first + s : first) * p->x_stride + i;
            for (int64_t j = 0; j < count; j++)
                to[(i + j) * columns + s] = there ? x[j] : 0;
        }
    }
}

/* y [ROWS, columns] = weight [ROWS, n] x [n, columns], of so many vectors of columns. */
ALWAYS_INLINE void multiply_columns(int vectors, Real *y, const Real *weight, const Real *x,
                                    int64_t n, int64_t columns)
{
    Vector sums[ROWS][2] = { { { 0 } } };
    for (int64_t line = 0; line < n; line += LINE) {
        for (int r = 0; r < ROWS; r++)
            __builtin_prefetch(weight + (r + ROWS) * n + line);
        for (int64_t i = line; i < minimum(line + LINE, n); i++)
            for (int r = 0; r < ROWS; r++)
                for (int v = 0; v < vectors; v++)
                    sums[r][v] +=
                        weight[r * n + i] * *(const Vector *)(x + i * columns + v * LANES);
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++)
            *(Vector *)(y + r * columns + v * LANES) = sums[r][v];
}

/* y [ROWS, columns], likewise, of columns in whole vectors. */
WHOLE_VECTORS static void multiply_tile(Real *y, const Real *weight, const Real *x, int64_t n,
                                        int64_t columns)
{
    int64_t c = 0;
    for (; c + 2 * LANES <= columns; c += 2 * LANES)
        multiply_columns(2, y + c, weight, x + c, n, columns);
    if (c < columns)
        multiply_columns(1, y + c, weight, x + c, n, columns);
}

/* out of ROWS rows of the weight <- y [ROWS, columns] transposed, plus bias */
static void store_tile(const StepProduct *p, const Real *y, int64_t row, int64_t first,
                       int64_t columns)
{
    const int64_t sequences = minimum(columns, p->B - first);
    for (int64_t s = 0; s < sequences; s++) {
        Real *out = p->out + (first + s) * p->out_stride + row;
        for (int r = 0; r < ROWS; r++)
            contribute(out + r, p->add, y[r * columns + s] + (p->bias ? p->bias[row + r] : 0));
    }
}

/* Rows in whole tiles, of a block of sequences from first on. */
static void multiply_block(const StepProduct *p, int64_t begin, int64_t end, int64_t first)
{
    const int64_t columns = (minimum(BLOCK, p->B - first) + LANES - 1) / LANES * LANES;
    Real *x = p->buffer, *y = x + p->n * BLOCK;
    transpose_x(x, p, first, columns);
    for (int64_t row = begin; row < end; row += ROWS) {
        multiply_tile(y, p->weight + row * p->n, x, p->n, columns);
        store_tile(p, y, row, first, columns);
    }
}

static void product_by_blocks(const StepProduct *p, int64_t begin, int64_t end)
{
    const int64_t whole = begin + (end - begin) / ROWS * ROWS;
    for (int64_t first = 0; first < p->B && whole > begin; first += BLOCK)
        multiply_block(p, begin, whole, first);
    product_by_rows(p, whole, end);
}

void step_product(const StepProduct *p, int64_t begin, int64_t end)
{
    if (p->buffer)
        product_by_blocks(p, begin, end);
    else
        product_by_rows(p, begin, end);
}
