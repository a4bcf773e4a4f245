/* transpose in TRANSPOSE_TILE x TRANSPOSE_TILE tiles of p and q, so that source and destination
 * both stay in cache. Runs of `inner` contiguous elements need no tiles. */
#include "ops/cpu/layout/layout.h"
#include "ops/cpu/shared/vectors.h"
#include "ops/kernels.h"

enum { TRANSPOSE_TILE = 16 };

/* to[j, i] <- from[i, j], i < rows, j < columns: LANES x LANES elements in registers, the others of
 * a ragged tile one by one. */
ALWAYS_INLINE void transpose_tile(int T, Gradient to, int64_t to_row, const Real *from,
                                  int64_t from_row, int64_t rows, int64_t columns)
{
    const int64_t whole_rows = rows / LANES * LANES, whole_columns = columns / LANES * LANES;
    for (int64_t i = 0; i < whole_rows; i += LANES)
        for (int64_t j = 0; j < whole_columns; j += LANES) {
            Vector x[LANES];
            UNROLL(16)
            for (int k = 0; k < LANES; k++)
                x[k] = load_vector(T, from, (i + k) * from_row + j);
            transpose_vectors(x);
            UNROLL(16)
            for (int k = 0; k < LANES; k++) {
                const int64_t at = (j + k) * to_row + i;
                if (to.accumulate)
                    x[k] += load_vector(T, to.data, at);
                store_vector(T, to.data, at, x[k]);
            }
        }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = i < whole_rows ? whole_columns : 0; j < columns; j++)
            contribute(T, to.data, j * to_row + i, to.accumulate, load(T, from, i * from_row + j));
}

/* inner = 1 */
ALWAYS_INLINE void transpose_tiles(int T, Gradient out, const Real *x, int64_t outer, int64_t p,
                                   int64_t middle, int64_t q)
{
    const int64_t x_row = middle * q, out_row = middle * p;
    const int threads = device_threads_for(outer * p * x_row, 0.5);
    PRAGMA(omp parallel for collapse(3) schedule(static) num_threads(threads))
    for (int64_t o = 0; o < outer; o++)
        for (int64_t m = 0; m < middle; m++)
            for (int64_t j = 0; j < q; j += TRANSPOSE_TILE)
                for (int64_t i = 0; i < p; i += TRANSPOSE_TILE)
                    transpose_tile(
                        T,
                        (Gradient){ elements_at(T, out.data, ((o * q + j) * middle + m) * p + i),
                                    out.accumulate },
                        out_row, elements_at(T, x, ((o * p + i) * middle + m) * q + j), x_row,
                        p - i < TRANSPOSE_TILE ? p - i : TRANSPOSE_TILE,
                        q - j < TRANSPOSE_TILE ? q - j : TRANSPOSE_TILE);
}

void transpose_cpu(Gradient out, const Real *x, int64_t outer, int64_t p, int64_t middle, int64_t q,
                   int64_t inner)
{
    if (inner == 1)
        transpose_tiles(TENSOR_REAL, out, x, outer, p, middle, q);
    else
        transpose_plain(out, x, outer, p, middle, q, inner);
}

void transpose_bf16(Gradient out, const Real *x, int64_t outer, int64_t p, int64_t middle,
                    int64_t q, int64_t inner)
{
    if (inner == 1) {
        transpose_tiles(TENSOR_BF16, out, x, outer, p, middle, q);
        return;
    }
    EACH_ROW(row, outer * q, middle * p * inner) {
        const int64_t o = row / q, j = row % q;
        for (int64_t m = 0; m < middle; m++)
            for (int64_t i = 0; i < p; i++)
                contribute_run(TENSOR_BF16, out.data, ((row * middle + m) * p + i) * inner,
                               out.accumulate, x, (((o * p + i) * middle + m) * q + j) * inner,
                               inner);
    }
}
