/* embedding: the forward pass in bf16, and the backward pass in both dtypes. In bf16 the rows are;
 * the weight and its gradient are Real. */
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"
#include "ops/shared/internal.h"

void embedding_forward_bf16(Gradient out, const Real *weight, const int32_t *indices, int64_t R,
                            int64_t D)
{
    EACH_ROW(r, R, D) {
        const Real *row = weight + indices[r] * D;
        const Gradient to = { elements_at(TENSOR_BF16, out.data, r * D), out.accumulate };
        PRAGMA(omp simd)
        for (int64_t d = 0; d < D; d++)
            contribute(TENSOR_BF16, to.data, d, to.accumulate, row[d]);
    }
}

/* Rows of dweight with more than INDEX_RUN terms are frequent: they are summed in Real over runs of
 * INDEX_RUN rows of dout, whose rounding errors stay below 1e-4, and over the runs in double. */
enum { INDEX_RUN = 8192 };
typedef struct FrequentRows {
    int32_t *index; /* [count] */
    double *sums;   /* [count, D]: over the runs so far */
    int64_t count;
} FrequentRows;

static FrequentRows frequent_rows(const int32_t *indices, int64_t R, int64_t V, int64_t D)
{
    FrequentRows f = { 0 };
    if (R <= INDEX_RUN)
        return f;
    int32_t *terms = f.index = (int32_t *)(void *)device_workspace(V);
    memset(terms, 0, (size_t)V * sizeof *terms);
    for (int64_t r = 0; r < R; r++)
        terms[indices[r]]++;
    for (int64_t v = 0; v < V; v++)
        if (terms[v] > INDEX_RUN)
            f.index[f.count++] = (int32_t)v;
    const int64_t per_double = sizeof(double) / sizeof(Real);
    f.sums = (double *)(void *)device_workspace(f.count * D * per_double);
    memset(f.sums, 0, (size_t)(f.count * D) * sizeof *f.sums);
    return f;
}

/* The columns from start to end - 1 of dweight += rows first to last - 1 of dout. */
ALWAYS_INLINE void add_indexed_rows(int T, Real *dweight, const Real *dout, const int32_t *indices,
                                    int64_t first, int64_t last, int64_t D, int64_t start,
                                    int64_t end)
{
    for (int64_t r = first; r < last; r++) {
        Real *row = dweight + indices[r] * D;
        PRAGMA(omp simd)
        for (int64_t d = start; d < end; d++)
            row[d] += load(T, dout, r * D + d);
    }
}

/* The run's sums of these columns move to f->sums, the last run's from there. */
static void end_index_run(const FrequentRows *f, Real *dweight, int64_t D, int64_t start,
                          int64_t end, bool last)
{
    for (int64_t i = 0; i < f->count; i++) {
        Real *row = dweight + f->index[i] * D;
        for (int64_t d = start; d < end; d++) {
            const double sum = f->sums[i * D + d] + (double)row[d];
            f->sums[i * D + d] = sum;
            row[d] = last ? (Real)sum : 0;
        }
    }
}

/* Threads take different columns. */
static void embedding_backward_as(TensorType type, Gradient dweight, const Real *dout,
                                  const int32_t *indices, int64_t R, int64_t V, int64_t D)
{
    enum { TILE = 16 };
    const int64_t threads = device_threads(), tiles = (D + TILE - 1) / TILE;
    const int64_t columns = (tiles + threads - 1) / threads * TILE;
    const FrequentRows f = frequent_rows(indices, R, V, D);
    const int64_t run = f.count > 0 ? INDEX_RUN : R;
    if (!dweight.accumulate)
        EACH(i, V * D)
            dweight.data[i] = 0;
    EACH_ROW(tile, (D + columns - 1) / columns, R * columns) {
        const int64_t start = tile * columns, end = start + columns < D ? start + columns : D;
        for (int64_t first = 0, last; first < R; first = last) {
            last = R - first < run ? R : first + run;
            BY_STORAGE(
                type, T,
                add_indexed_rows(T, dweight.data, dout, indices, first, last, D, start, end));
            end_index_run(&f, dweight.data, D, start, end, last == R);
        }
    }
    device_workspace_free((Real *)(void *)f.sums);
    device_workspace_free((Real *)(void *)f.index);
}

void embedding_backward_cpu(Gradient dweight, const Real *dout, const int32_t *indices, int64_t R,
                            int64_t V, int64_t D)
{
    embedding_backward_as(TENSOR_REAL, dweight, dout, indices, R, V, D);
}

void embedding_backward_bf16(Gradient dweight, const Real *dout, const int32_t *indices, int64_t R,
                             int64_t V, int64_t D)
{
    embedding_backward_as(TENSOR_BF16, dweight, dout, indices, R, V, D);
}
