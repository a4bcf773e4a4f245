/* residual_layernorm on the CPU, in Real and in bf16: a tile of rows of s = x + m branch is
 * computed in L1 and then normalized, so that x and branch are read from memory once. */
#include "ops/cpu/elementwise/dropout.h"
#include "ops/cpu/rows/layernorm.h"

/* Approximate elements per tile of rows: a tile stays in L1 and uses whole Philox blocks. */
enum { COLUMN_TILE = 2048 };

static int64_t tile_rows(int64_t C)
{
    return C < COLUMN_TILE ? COLUMN_TILE / C : 1;
}

/* s [count] <- x + m branch, for the elements from `first` on; stores m [count]; m may be s. */
ALWAYS_INLINE void add_dropped(int T, Real *s, Real *m, const Real *x, const Real *branch,
                               const DropoutDraw *d, int64_t first, int64_t count)
{
    if (d->limit > 0) {
        dropout_factors(m, d, first, count);
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            const Real b = load(T, branch, first + i);
            s[i] = load(T, x, first + i) + (m[i] != 0 ? m[i] * b : 0);
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            s[i] = load(T, x, first + i) + load(T, branch, first + i);
    }
}

/* A tile of s is stored in out if it is Real; bf16 would round s, so each thread then has a tile of
 * its own. */
static void residual_layernorm_forward_as(TensorType type, Real *out, const NormArguments *norm,
                                          const Residual *residual)
{
    const int64_t R = norm->R, C = norm->C, rows = tile_rows(C);
    Real *tiles = type == TENSOR_BF16 ? device_workspace(device_threads() * rows * C) : NULL;
#pragma omp parallel for schedule(static) num_threads(device_threads_for(R *C, 0.5))
    for (int64_t start = 0; start < R; start += rows) {
        const int64_t end = start + rows < R ? start + rows : R;
        Real *tile = tiles ? tiles + omp_get_thread_num() * rows * C : out + start * C;
        BY_STORAGE(type, T,
                   add_dropped(T, tile, tile, norm->x, residual->branch, &residual->draw, start * C,
                               (end - start) * C));
        for (int64_t row = start; row < end; row++)
            BY_STORAGE(type, T,
                       norm->statistics[row] = layernorm_row(
                           T, elements_at(T, out, row * C), TENSOR_REAL, tile + (row - start) * C,
                           norm->weight, norm->bias, norm->eps, C));
    }
    if (tiles)
        device_workspace_free(tiles);
}

void residual_layernorm_forward_cpu(Real *out, NormArguments norm, Residual residual)
{
    residual_layernorm_forward_as(TENSOR_REAL, out, &norm, &residual);
}

void residual_layernorm_forward_bf16(Real *out, NormArguments norm, Residual residual)
{
    residual_layernorm_forward_as(TENSOR_BF16, out, &norm, &residual);
}

/* ds [count] <- m ds */
static void drop_again(Real *ds, const Real *m, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        ds[i] = m[i] != 0 ? m[i] * ds[i] : 0;
}

/* dx <- ds [count], for the elements from `first` on. */
ALWAYS_INLINE void contribute_rows(int T, Gradient dx, const Real *ds, int64_t first, int64_t count)
{
    if (dx.data && T == TENSOR_REAL && !dx.accumulate) {
        memcpy(dx.data + first, ds, (size_t)count * sizeof *ds);
    } else if (dx.data) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            contribute(T, dx.data, first + i, dx.accumulate, ds[i]);
    }
}

/* The gradients of the rows, and dL/dout. */
typedef struct RowGradients {
    Gradient dx, dbranch; /* data NULL where none is required */
    const Real *dout;
} RowGradients;

/* One tile: the rows from start to end - 1. s has the sums, then ds in their place; behind it is
 * m. */
ALWAYS_INLINE void tile_backward(int T, RowGradients g, WeightRows sums, Real *s,
                                 const NormArguments *norm, const Residual *residual, int64_t start,
                                 int64_t end)
{
    const int64_t C = norm->C, first = start * C, count = (end - start) * C;
    const DropoutDraw *d = &residual->draw;
    Real *m = s + tile_rows(C) * C;
    add_dropped(T, s, m, norm->x, residual->branch, d, first, count);
    for (int64_t row = start; row < end; row++) {
        Real *s_row = s + (row - start) * C;
        const Gradient ds = { g.dx.data || g.dbranch.data ? s_row : NULL, false };
        const NormRow inputs = { elements_at(T, g.dout, row * C), s_row, norm->weight,
                                 norm->statistics[row], C };
        layernorm_row_backward(ds, sums, T, TENSOR_REAL, inputs);
    }
    contribute_rows(T, g.dx, s, first, count);
    if (d->limit > 0)
        drop_again(s, m, count);
    contribute_rows(T, g.dbranch, s, first, count);
}

static void residual_layernorm_backward_as(TensorType type, RowGradients g, WeightSums sums,
                                           const NormArguments *norm, const Residual *residual)
{
    const int64_t R = norm->R, C = norm->C, rows = tile_rows(C);
    Real *tiles = device_workspace(device_threads() * 2 * rows * C);
#pragma omp parallel for schedule(static) num_threads(device_threads_for(R *C, 0.8))
    for (int64_t i = 0; i < sums.blocks; i++) {
        Real *s = tiles + omp_get_thread_num() * 2 * rows * C;
        const WeightRows of_block = weight_rows(&sums, i);
        const int64_t last = sum_block_start(i + 1, R);
        for (int64_t start = sum_block_start(i, R); start < last; start += rows) {
            const int64_t end = start + rows < last ? start + rows : last;
            BY_STORAGE(type, T, tile_backward(T, g, of_block, s, norm, residual, start, end));
        }
    }
    device_workspace_free(tiles);
    weight_sums_end(&sums);
}

void residual_layernorm_backward_cpu(Gradient dx, Gradient dbranch, Gradient dweight,
                                     Gradient dbias, const Real *dout, NormArguments norm,
                                     Residual residual)
{
    residual_layernorm_backward_as(TENSOR_REAL, (RowGradients){ dx, dbranch, dout },
                                   weight_sums_begin(dweight, dbias, norm), &norm, &residual);
}

void residual_layernorm_backward_bf16(Gradient dx, Gradient dbranch, Gradient dweight,
                                      Gradient dbias, const Real *dout, NormArguments norm,
                                      Residual residual)
{
    residual_layernorm_backward_as(TENSOR_BF16, (RowGradients){ dx, dbranch, dout },
                                   weight_sums_begin(dweight, dbias, norm), &norm, &residual);
}
