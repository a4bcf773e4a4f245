/* pooling in both dtypes: the channels of a pixel are contiguous, so a block of them has its maxima
 * or sums in L1. ops/convolution/pool.c has the derivation. */
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"
#include "ops/shared/internal.h"

enum { POOL_BLOCK = 64, PIXEL_RUN = 256 }; /* channels; pixels */

static int pool_block(int64_t first, int64_t C)
{
    return C - first < POOL_BLOCK ? (int)(C - first) : POOL_BLOCK;
}

/* n channels of the window of pixels h, w in x, an image */
ALWAYS_INLINE void max_of_window(int T, Real *out, int32_t *index, const Real *x, const Windows *s,
                                 Interval h, Interval w, int n)
{
    Real max[POOL_BLOCK];
    int32_t first[POOL_BLOCK];
    for (int c = 0; c < n; c++) {
        max[c] = -INFINITY;
        first[c] = (int32_t)(h.first * s->W + w.first);
    }
    for (int64_t i = h.first; i < h.end; i++)
        for (int64_t j = w.first; j < w.end; j++) {
            const int32_t at = (int32_t)(i * s->W + j);
            const Real *pixel = elements_at(T, x, at * s->C);
#pragma omp simd
            for (int c = 0; c < n; c++) {
                const Real value = load(T, pixel, c);
                const bool larger = (max[c] == max[c]) & !(value <= max[c]);
                max[c] = larger ? value : max[c];
                first[c] = larger ? at : first[c];
            }
        }
    for (int c = 0; c < n; c++) {
        store(T, out, c, max[c]);
        index[c] = first[c];
    }
}

/* total += sum, which becomes 0 */
static void move_sums(double *total, Real *sum, int n)
{
    for (int c = 0; c < n; c++) {
        total[c] += (double)sum[c];
        sum[c] = 0;
    }
}

/* many, a compile-time constant: the window has more than PIXEL_RUN pixels. They are then summed in
 * Real over runs of that length, and the runs in double. */
ALWAYS_INLINE void sum_of_window(int T, bool many, Real *out, const Real *x, const Windows *s,
                                 Interval h, Interval w, int n)
{
    const Real share = 1 / (Real)(s->height * s->width);
    Real sum[POOL_BLOCK] = { 0 };
    double total[POOL_BLOCK];
    int64_t pixels = 0;
    if (many)
        memset(total, 0, sizeof total);
    for (int64_t i = h.first; i < h.end; i++)
        for (int64_t j = w.first; j < w.end; j++) {
            const Real *pixel = elements_at(T, x, (i * s->W + j) * s->C);
#pragma omp simd
            for (int c = 0; c < n; c++)
                sum[c] += load(T, pixel, c);
            if (many && ++pixels % PIXEL_RUN == 0)
                move_sums(total, sum, n);
        }
    if (many)
        move_sums(total, sum, n);
    for (int c = 0; c < n; c++)
        store(T, out, c, many ? (Real)(total[c] / (double)(s->height * s->width)) : sum[c] * share);
}

/* index: NULL for the sums; many: see sum_of_window */
ALWAYS_INLINE void pool_as(int T, bool many, Real *out, int32_t *index, const Real *x,
                           const Windows *s)
{
    const int64_t windows = s->B * s->rows * s->columns, C = s->C;
    const int threads = device_threads_for(windows * s->height * s->width * C, 0.2);
    PRAGMA(omp parallel for schedule(static) num_threads(threads))
    for (int64_t window = 0; window < windows; window++) {
        const int64_t row = window / s->columns, image = row / s->rows * s->H * s->W * C;
        const Interval h = rows_of_window(s, row % s->rows);
        const Interval w = columns_of_window(s, window % s->columns);
        for (int64_t c = 0; c < C; c += POOL_BLOCK) {
            Real *to = elements_at(T, out, window * C + c);
            const Real *from = elements_at(T, x, image + c);
            if (index)
                max_of_window(T, to, index + window * C + c, from, s, h, w, pool_block(c, C));
            else
                sum_of_window(T, many, to, from, s, h, w, pool_block(c, C));
        }
    }
}

/* The channels of pixel number `at` of an image, which is in windows y, x; index: NULL, or compared
 * with at */
ALWAYS_INLINE void sum_of_windows(int T, Gradient dx, const Real *dout, const int32_t *index,
                                  const Windows *s, Interval y, Interval x, int32_t at)
{
    const Real share = index ? 1 : 1 / (Real)(s->height * s->width);
    for (int64_t block = 0; block < s->C; block += POOL_BLOCK) {
        const int n = pool_block(block, s->C);
        Real sum[POOL_BLOCK] = { 0 };
        for (int64_t i = y.first; i < y.end; i++)
            for (int64_t j = x.first; j < x.end; j++) {
                const int64_t first = (i * s->columns + j) * s->C + block;
                const Real *g = elements_at(T, dout, first);
#pragma omp simd
                for (int c = 0; c < n; c++)
                    sum[c] += !index || index[first + c] == at ? load(T, g, c) : 0;
            }
#pragma omp simd
        for (int c = 0; c < n; c++)
            contribute(T, dx.data, block + c, dx.accumulate, sum[c] * share);
    }
}

ALWAYS_INLINE void pool_backward_as(int T, Gradient dx, const Real *dout, const int32_t *index,
                                    const Windows *s)
{
    PRAGMA(omp parallel for schedule(static)
               num_threads(device_threads_for(s->B * s->H * s->W * s->C, 0.5)))
    for (int64_t row = 0; row < s->B * s->H; row++) {
        const int64_t h = row % s->H, image = row / s->H * s->rows * s->columns * s->C;
        const Interval y = windows_of_row(s, h);
        const Real *g = elements_at(T, dout, image);
        for (int64_t w = 0; w < s->W; w++) {
            const Interval x = windows_of_column(s, w);
            const Gradient to = { elements_at(T, dx.data, (row * s->W + w) * s->C), dx.accumulate };
            if (index)
                sum_of_windows(T, to, g, index + image, s, y, x, (int32_t)(h * s->W + w));
            else
                sum_of_windows(T, to, g, NULL, s, y, x, 0);
        }
    }
}

void max_pool_cpu(Real *out, int32_t *index, const Real *x, Windows s)
{
    pool_as(TENSOR_REAL, false, out, index, x, &s);
}

void max_pool_bf16(Real *out, int32_t *index, const Real *x, Windows s)
{
    pool_as(TENSOR_BF16, false, out, index, x, &s);
}

void average_pool_cpu(Real *out, const Real *x, Windows s)
{
    if (s.height * s.width > PIXEL_RUN)
        pool_as(TENSOR_REAL, true, out, NULL, x, &s);
    else
        pool_as(TENSOR_REAL, false, out, NULL, x, &s);
}

void average_pool_bf16(Real *out, const Real *x, Windows s)
{
    if (s.height * s.width > PIXEL_RUN)
        pool_as(TENSOR_BF16, true, out, NULL, x, &s);
    else
        pool_as(TENSOR_BF16, false, out, NULL, x, &s);
}

void pool_backward_cpu(Gradient dx, const Real *dout, const int32_t *index, Windows s)
{
    pool_backward_as(TENSOR_REAL, dx, dout, index, &s);
}

void pool_backward_bf16(Gradient dx, const Real *dout, const int32_t *index, Windows s)
{
    pool_backward_as(TENSOR_BF16, dx, dout, index, &s);
}
