/* Training multiplies many rows at once; a decode step may have one. Its product is then bound by
 * reading the weight, which must be read once and in storage order. For small batches each sum
 * therefore runs along a row of the weight, in all lanes of a vector, for several rows and
 * sequences at a time; the lanes are added at the end.
 *
 * For large batches these final additions, and reading x again for every few rows, dominate. There
 * x is transposed, so that a vector holds one element of several sequences, which is multiplied by
 * one element of the weight at a time.
 *
 * Both ways prefetch the next rows of the weight: rows are too short for the hardware
 * prefetcher. */
#include "nn/generation/product_cpu.h"
#include "ops/shared/tiles_cpu.h"

/* out[sequence, row] <- sum, plus bias and residual */
ALWAYS_INLINE void store_sum(const StepProduct *p, int64_t sequence, int64_t row, Real sum)
{
    contribute(TENSOR_REAL, p->out, sequence * p->O + row, p->residual,
               sum + (p->linear.bias ? p->linear.bias[row] : 0));
}

/* -------------------------------------------------------------------------------- small batches */
enum {
    TILE_ROWS = 4,
    TILE_SEQUENCES = VECTOR_BYTES == 64 ? 4 : 2, /* a tile's sums fit in registers */
};

/* The dot product of the last columns, from `whole` on, which do not fill a vector. */
ALWAYS_INLINE Real rest(const Real *weight, const Real *x, int64_t whole, int64_t n)
{
    Real sum = 0;
    for (int64_t i = whole; i < n; i++)
        sum += weight[i] * x[i];
    return sum;
}

/* A tile of `rows` rows of the weight by `sequences` rows of x, both compile-time constants. */
ALWAYS_INLINE void multiply_rows(int rows, int sequences, const StepProduct *p, int64_t row,
                                 int64_t sequence)
{
    const int64_t n = p->I, whole = n / LANES * LANES;
    const Real *weight = p->linear.weight + row * n, *x = p->in.x + sequence * n;
    Vector sums[TILE_ROWS][TILE_SEQUENCES] = { { { 0 } } };
    for (int64_t i = 0; i < whole; i += LANES)
        for (int r = 0; r < rows; r++) {
            __builtin_prefetch(weight + (r + rows) * n + i);
            for (int s = 0; s < sequences; s++)
                sums[r][s] += load_vector(TENSOR_REAL, weight, r * n + i) *
                              load_vector(TENSOR_REAL, x, s * n + i);
        }
    for (int r = 0; r < rows; r++)
        for (int s = 0; s < sequences; s++)
            store_sum(p, sequence + s, row + r,
                      vector_sum(sums[r][s]) + rest(weight + r * n, x + s * n, whole, n));
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

/* -------------------------------------------------------------------------------- large batches */
enum { BLOCK = 32 }; /* sequences per block */

int64_t step_product_buffer(int64_t I)
{
    return (I + ROWS) * BLOCK;
}

/* to [I, columns] = x^T for the sequences from first on, padded with zeros. Copies one cache line
 * per row at a time, because lines at a stride of one row evict each other from the cache. */
static void transpose_x(Real *to, const StepProduct *p, int64_t first, int64_t columns)
{
    for (int64_t i = 0; i < p->I; i += LINE) {
        const int64_t count = minimum(LINE, p->I - i);
        for (int64_t s = 0; s < columns; s++) {
            const bool there = first + s < p->B;
            const Real *x = p->in.x + (there ? first + s : first) * p->I + i;
            for (int64_t j = 0; j < count; j++)
                to[(i + j) * columns + s] = there ? x[j] : 0;
        }
    }
}

/* Rows begin to end, a multiple of ROWS, for the block of sequences from first on. */
WHOLE_VECTORS static void multiply_block(const StepProduct *p, Real *buffer, int64_t begin,
                                         int64_t end, int64_t first)
{
    const int64_t sequences = minimum(BLOCK, p->B - first), columns = round_up(sequences, LANES);
    const int64_t n = p->I;
    Real *x = buffer, *y = x + n * BLOCK; /* [I, columns], [ROWS, columns] = weight x */
    transpose_x(x, p, first, columns);
    for (int64_t row = begin; row < end; row += ROWS) {
        product(false, true, y, p->linear.weight + row * n, n, 1, x, columns, ROWS, n, columns);
        for (int64_t s = 0; s < sequences; s++)
            for (int r = 0; r < ROWS; r++)
                store_sum(p, first + s, row + r, y[r * columns + s]);
    }
}

void step_product(const StepProduct *p, Real *buffer, int64_t begin, int64_t end)
{
    const int64_t whole = buffer ? begin + (end - begin) / ROWS * ROWS : begin;
    for (int64_t first = 0; first < p->B && whole > begin; first += BLOCK)
        multiply_block(p, buffer, begin, whole, first);
    product_by_rows(p, whole, end);
}
