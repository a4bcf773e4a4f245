/* conv2d on the CPU without oneDNN, as matrix products: a block of windows at a time becomes the
 * rows of a matrix `windows` [n, height width C] (im2col), which stays in the cache.
 *   forward   out [n, O] = windows weight^T + bias
 *   dx        dout [n, O] weight = the windows' gradients, which are added to their pixels
 *   dweight   dout^T [O, n] windows, in Real over a run of at most 4096 windows; the runs, whose
 *             number does not depend on the threads, are added in double, in order
 * Groups are computed by the plain kernels. */
#include "ext/images/cpu/conv2d.h"
#include "ops/cpu/shared/multiply.h"
#include "ops/cpu/shared/tiles.h"

/* A copy of a run of pixels, or with add its gradient's contribution to x. */
ALWAYS_INLINE void move_run(bool add, Real *restrict window, Real *restrict x, int64_t length)
{
    int64_t k = 0;
    for (; k + LANES <= length; k += LANES) {
        const Vector of_window = load_vector(TENSOR_REAL, window, k);
        const Vector of_x = load_vector(TENSOR_REAL, x, k);
        if (add)
            store_vector(TENSOR_REAL, x, k, of_x + of_window);
        else
            store_vector(TENSOR_REAL, window, k, of_x);
    }
    for (; k < length; k++) {
        if (add)
            x[k] += window[k];
        else
            window[k] = x[k];
    }
}

/* windows [n, size] = the windows of x from `first` on; or with add x += them, pixel by pixel. A
 * run is a window's row or, dilated, a pixel. */
ALWAYS_INLINE void move_windows(bool add, Real *windows, Real *x, const Windows *w, int64_t first,
                                int64_t n)
{
    const int64_t runs = w->dilation == 1 ? 1 : w->width; /* per row */
    const int64_t length = w->width / runs * w->C, size = window_size(w), step = w->stride_x * w->C;
    for (int64_t k = 0, count; k < n; k += count) { /* windows of one row of an image */
        const int64_t row = (first + k) / w->columns, column = (first + k) % w->columns;
        const int64_t top = row % w->rows * w->stride_y - w->padding_y;
        count = minimum(w->columns - column, n - k);
        for (int64_t r = 0; r < w->height * runs; r++) {
            const int64_t h = top + r / runs * w->dilation, end = w->W * w->C;
            Real *to = windows + k * size + r * length;
            Real *line = x + (row / w->rows * w->H + h) * end;
            int64_t left = column * step + (r % runs * w->dilation - w->padding_x) * w->C;
            for (int64_t c = 0; c < count; c++, to += size, left += step) {
                const int64_t begin = maximum(-left, 0), stop = minimum(length, end - left);
                const bool outside = h < 0 || h >= w->H || begin >= stop;
                if (!add && (outside || stop - begin < length))
                    memset(to, 0, (size_t)length * sizeof *to);
                if (!outside)
                    move_run(add, to + begin, line + left + begin, stop - begin);
            }
        }
    }
}

static void read_windows(Real *windows, const Real *x, const Windows *w, int64_t first, int64_t n)
{
    move_windows(false, windows, (Real *)x, w, first, n);
}

static void add_windows(Real *dx, Real *windows, const Windows *w, int64_t first, int64_t n)
{
    move_windows(true, windows, dx, w, first, n);
}

/* The number of windows in a block, which takes a part of L2. */
static int64_t block_windows(const Windows *w)
{
    enum { BLOCK = 1 << 15 };
    return maximum(BLOCK / window_size(w), 1);
}

/* A thread's scratch memory, for a product of a block. */
typedef struct Scratch {
    Real *windows, *packed;
    int64_t size;
} Scratch;

static Scratch scratch_of(const Windows *w, Product p, int64_t threads)
{
    const int64_t size = round_up(block_windows(w) * window_size(w), LINE) + product_workspace(p);
    return (Scratch){ .windows = device_workspace(threads * size), .size = size };
}

static Scratch scratch_part(Scratch all, const Windows *w, int64_t part)
{
    Real *windows = all.windows + part * all.size;
    return (Scratch){ windows, windows + round_up(block_windows(w) * window_size(w), LINE), 0 };
}

/* Nanoseconds for one window. */
static double cost(Convolution c)
{
    return 5 + (double)window_size(&c.windows) * (0.5 + 0.02 * (double)c.O);
}

static void conv2d_forward_im2col(Real *out, const Real *x, const Real *weight, const Real *bias,
                                  Convolution c)
{
    if (c.groups > 1) {
        convolution_plain.forward(out, x, weight, bias, c);
        return;
    }
    const Windows *w = &c.windows;
    const int64_t O = c.O, count = windows_count(w), block = block_windows(w);
    const int64_t blocks = (count + block - 1) / block, threads = device_threads();
    Product p = { .n = block, .k = window_size(w), .m = O, .transpose_b = true, .count = 1 };
    const Scratch scratch = scratch_of(w, p, threads);
    PRAGMA(omp parallel for schedule(static) num_threads(device_threads_for(count, cost(c))))
    for (int64_t part = 0; part < threads; part++) {
        const Scratch own = scratch_part(scratch, w, part);
        for (int64_t b = part * blocks / threads; b < (part + 1) * blocks / threads; b++) {
            const int64_t first = b * block, n = minimum(block, count - first);
            Real *to = out + first * O;
            for (int64_t o = 0; bias && o < n * O; o += O)
                memcpy(to + o, bias, (size_t)O * sizeof *to);
            read_windows(own.windows, x, w, first, n);
            const ProductPiece piece = { to, own.windows, weight, n, O, 1, NULL };
            multiply_tiles(piece, bias, p, own.packed);
        }
    }
    device_workspace_free(scratch.windows);
}

/* Windows of one image overlap: an image belongs to one thread. */
static void conv2d_backward_x_im2col(Gradient dx, const Real *dout, const Real *weight,
                                     Convolution c)
{
    if (c.groups > 1) {
        convolution_plain.backward_x(dx, dout, weight, c);
        return;
    }
    const Windows *w = &c.windows;
    const int64_t O = c.O, image = w->H * w->W * w->C, per_image = w->rows * w->columns;
    const int64_t block = block_windows(w), threads = device_threads();
    const Product p = { .n = block, .k = O, .m = window_size(w), .count = 1 };
    const Scratch scratch = scratch_of(w, p, threads);
    PRAGMA(omp parallel for schedule(static)
               num_threads(device_threads_for(windows_count(w), cost(c))))
    for (int64_t part = 0; part < threads; part++) {
        const Scratch own = scratch_part(scratch, w, part);
        for (int64_t b = part * w->B / threads; b < (part + 1) * w->B / threads; b++) {
            if (!dx.accumulate)
                memset(dx.data + b * image, 0, (size_t)image * sizeof *dx.data);
            for (int64_t first = b * per_image, n; first < (b + 1) * per_image; first += n) {
                n = minimum(block, (b + 1) * per_image - first);
                const ProductPiece piece = {
                    own.windows, dout + first * O, weight, n, p.m, 1, NULL
                };
                multiply_tiles(piece, false, p, own.packed);
                add_windows(dx.data, own.windows, w, first, n);
            }
        }
    }
    device_workspace_free(scratch.windows);
}

/* Windows per run: whole blocks, MAX_RUN or less. Several threads need several runs; but adding a
 * run's O size sums in double, which threads do in turn, costs as much as about 10 windows. */
enum { RUNS = 32, MIN_RUN = 256, MAX_RUN = 4096 };
static int64_t run_windows(int64_t count, int64_t block)
{
    const int64_t run = minimum(maximum(count / RUNS, MIN_RUN), MAX_RUN);
    return maximum(run / block, 1) * block;
}

/* run [O, size] = dout^T windows, from window `begin` to `end` - 1 */
static void sum_run_of_windows(Real *run, const Real *dout, const Real *x, const Convolution *c,
                               Scratch own, int64_t block, int64_t begin, int64_t end)
{
    const int64_t size = window_size(&c->windows);
    for (int64_t first = begin, n; first < end; first += n) {
        n = minimum(block, end - first);
        const Product p = { .n = c->O, .k = n, .m = size, .transpose_a = true, .count = 1 };
        const ProductPiece piece = { run, dout + first * c->O, own.windows, c->O, size, 1, NULL };
        read_windows(own.windows, x, &c->windows, first, n);
        multiply_tiles(piece, first > begin, p, own.packed);
    }
}

static void conv2d_backward_weight_im2col(Gradient dweight, const Real *dout, const Real *x,
                                          Convolution c)
{
    if (c.groups > 1) {
        convolution_plain.backward_weight(dweight, dout, x, c);
        return;
    }
    const Windows *w = &c.windows;
    const int64_t O = c.O, size = window_size(w), count = windows_count(w);
    const int64_t block = minimum(block_windows(w), MAX_RUN), run = run_windows(count, block);
    const int64_t threads = device_threads(), per_double = sizeof(double) / sizeof(Real);
    const Product p = { .n = O, .k = block, .m = size, .transpose_a = true, .count = 1 };
    const Scratch scratch = scratch_of(w, p, threads);
    Real *sums = device_workspace(threads * O * size);
    double *sum = (double *)(void *)device_workspace(O * size * per_double);
    memset(sum, 0, (size_t)(O * size) * sizeof *sum);
    PRAGMA(omp parallel for ordered schedule(dynamic)
               num_threads(device_threads_for(count, cost(c))))
    for (int64_t first = 0; first < count; first += run) {
        const Scratch own = scratch_part(scratch, w, omp_get_thread_num());
        Real *own_sum = sums + omp_get_thread_num() * O * size;
        sum_run_of_windows(own_sum, dout, x, &c, own, block, first, minimum(first + run, count));
        PRAGMA(omp ordered)
        for (int64_t i = 0; i < O * size; i++)
            sum[i] += (double)own_sum[i];
    }
    for (int64_t i = 0; i < O * size; i++)
        gradient_add(dweight, i, (Real)sum[i]);
    device_workspace_free((Real *)(void *)sum);
    device_workspace_free(sums);
    device_workspace_free(scratch.windows);
}

const ConvolutionKernels convolution_im2col = { conv2d_forward_im2col, conv2d_backward_x_im2col,
                                                conv2d_backward_weight_im2col };
