/* unfold in bf16, and fold: the pixels of one row of a window are contiguous in x and in out. */
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"
#include "ops/shared/internal.h"

/* The j of window column x that are inside the image: contiguous in x and in out. */
typedef struct Inside {
    int64_t first, end;
} Inside;

static int64_t clamped_index(int64_t i, int64_t low, int64_t high)
{
    return i < low ? low : i > high ? high : i;
}

static Inside inside(const Windows *u, int64_t x)
{
    const int64_t left = u->padding_x - x * u->stride_x;
    return (Inside){ clamped_index(left, 0, u->width), clamped_index(u->W + left, 0, u->width) };
}

void unfold_bf16(Real *out, const Real *x, Windows u)
{
    enum { T = TENSOR_BF16 };
    const int64_t run = u.width * u.C, window = u.height * run;
    const int threads = device_threads_for(u.B * u.rows * u.columns * window, 0.2);
    PRAGMA(omp parallel for collapse(2) schedule(static) num_threads(threads))
    for (int64_t row = 0; row < u.B * u.rows; row++)
        for (int64_t column = 0; column < u.columns; column++)
            for (int64_t i = 0; i < u.height; i++) {
                Real *to = elements_at(T, out, (row * u.columns + column) * window + i * run);
                const int64_t h = row % u.rows * u.stride_y + i - u.padding_y;
                const Inside in = inside(&u, column);
                const bool whole = h >= 0 && h < u.H && in.end - in.first == u.width;
                if (!whole)
                    memset(to, 0, (size_t)run * element_bytes(T));
                if (h < 0 || h >= u.H || in.first >= in.end)
                    continue;
                const int64_t w = column * u.stride_x + in.first - u.padding_x;
                memcpy(elements_at(T, to, in.first * u.C),
                       elements_at(T, x, ((row / u.rows * u.H + h) * u.W + w) * u.C),
                       (size_t)((in.end - in.first) * u.C) * element_bytes(T));
            }
}

/* sum += elements first to end - 1 of row h [W, C] of an image, from dout, its windows */
ALWAYS_INLINE void fold_row(int T, Real *sum, int64_t first, int64_t end, const Real *dout,
                            const Windows *u, int64_t h)
{
    const int64_t run = u->width * u->C, window = u->height * run;
    const int64_t stride = u->stride_x * u->C, padding = u->padding_x * u->C;
    const int64_t first_x = clamped_index((first + padding - run) / stride, 0, u->columns);
    const int64_t end_x = clamped_index((end + padding) / stride + 1, 0, u->columns);
    for (int64_t i = 0; i < u->height; i++) {
        const int64_t t = h + u->padding_y - i, y = t / u->stride_y;
        if (t < 0 || t % u->stride_y || y >= u->rows)
            continue;
        for (int64_t x = first_x; x < end_x; x++) {
            const int64_t left = x * stride - padding; /* of the window in the row */
            const int64_t start = clamped_index(left, first, end),
                          stop = clamped_index(left + run, first, end);
            const Real *from =
                elements_at(T, dout, (y * u->columns + x) * window + i * run + start - left);
#pragma omp simd
            for (int64_t c = 0; c < stop - start; c++)
                sum[start - first + c] += load(T, from, c);
        }
    }
}

/* Row h of an image: bf16 sums a block of it in Real and rounds once, Real sums in place. */
ALWAYS_INLINE void fold_image_row(int T, Real *dx, bool accumulate, const Real *dout,
                                  const Windows *u, int64_t h)
{
    enum { BLOCK = 1024 };
    const int64_t row = u->W * u->C;
    if (T == TENSOR_REAL) {
        if (!accumulate)
            memset(dx, 0, (size_t)row * sizeof *dx);
        fold_row(T, dx, 0, row, dout, u, h);
        return;
    }
    for (int64_t first = 0; first < row; first += BLOCK) {
        const int64_t end = row < first + BLOCK ? row : first + BLOCK;
        Real sum[BLOCK] = { 0 };
        fold_row(T, sum, first, end, dout, u, h);
#pragma omp simd
        for (int64_t c = first; c < end; c++)
            contribute(T, dx, c, accumulate, sum[c - first]);
    }
}

ALWAYS_INLINE void fold_images(int T, Gradient dx, const Real *dout, Windows u)
{
    const int64_t row = u.W * u.C, image = u.rows * u.columns * u.height * u.width * u.C;
    PRAGMA(omp parallel for schedule(static) num_threads(device_threads_for(u.B * image, 0.5)))
    for (int64_t r = 0; r < u.B * u.H; r++)
        fold_image_row(T, elements_at(T, dx.data, r * row), dx.accumulate,
                       elements_at(T, dout, r / u.H * image), &u, r % u.H);
}

void fold_cpu(Gradient dx, const Real *dout, Windows u)
{
    fold_images(TENSOR_REAL, dx, dout, u);
}

void fold_bf16(Gradient dx, const Real *dout, Windows u)
{
    fold_images(TENSOR_BF16, dx, dout, u);
}
