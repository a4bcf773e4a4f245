/* conv2d in groups on the CPU. Each group is a convolution of its own, of copies of its channels;
 * but in a depthwise one, which has one channel per group, vectors are over the channels. A tap is
 * a pixel [i, j] of the windows; its weights are packed as w [O]. For each window and each tap
 * inside the image, with x [C], out [O], and k = the channel of filter o's group:
 *   forward: out_o += x_k w_o     backward: x_k += out_o w_o, or w_o += out_o x_k */
#include "ops/cpu/convolution/grouped.h"

#include <string.h>

#include "ops/kernels.h"
#include "ops/shared/internal.h"

/* ------------------------------------------------------------------------------ group by group */

/* Group g's columns of the rows of a matrix, in a workspace of its own; and back. */
static void copy_columns_from(Real *of_group, const Real *x, int64_t g, int64_t rows, int64_t C,
                              const Convolution *c)
{
    const int64_t columns = C / c->groups;
    copy_rows_plain((Gradient){ of_group, false }, columns, x + g * columns, C, rows, columns);
}

static void copy_columns_to(Gradient x, const Real *of_group, int64_t g, int64_t rows, int64_t C,
                            const Convolution *c)
{
    const int64_t columns = C / c->groups;
    copy_rows_plain(gradient_from(x, g * columns), C, of_group, columns, rows, columns);
}

static int64_t pixel_count(const Convolution *c)
{
    return c->windows.B * c->windows.H * c->windows.W;
}

/* A group's convolution, and workspaces for its x and out. */
typedef struct Group {
    Convolution c;
    Real *x, *out;
} Group;

static Group group_begin(const Convolution *c)
{
    Group group = { *c, NULL, NULL };
    group.c.windows.C = group_channels(c);
    group.c.O = group_filters(c);
    group.c.groups = 1;
    group.x = device_workspace(pixel_count(c) * group.c.windows.C);
    group.out = device_workspace(windows_count(&c->windows) * group.c.O);
    return group;
}

static void group_end(Group group)
{
    device_workspace_free(group.out);
    device_workspace_free(group.x);
}

/* ----------------------------------------------------------------------------------- depthwise */
typedef enum DepthwisePass { OUT_PASS, X_PASS, WEIGHT_PASS } DepthwisePass;

/* One window and tap: the pass's tensor += the product of the other two. */
ALWAYS_INLINE void add_products(DepthwisePass pass, Real *out, Real *x, Real *w, int64_t C,
                                int64_t filters)
{
    if (filters == 1) {
        Real *restrict to = pass == OUT_PASS ? out : pass == X_PASS ? x : w;
        const Real *a = pass == OUT_PASS ? x : out, *b = pass == WEIGHT_PASS ? x : w;
#pragma omp simd
        for (int64_t k = 0; k < C; k++)
            to[k] += a[k] * b[k];
        return;
    }
    for (int64_t o = 0; o < C * filters; o++) {
        Real *of_x = &x[o / filters], *to = pass == OUT_PASS ? &out[o] : &w[o];
        if (pass == X_PASS)
            *of_x += out[o] * w[o];
        else
            *to += *of_x * (pass == OUT_PASS ? w[o] : out[o]);
    }
}

/* The windows from first to end - 1; w [taps, O] */
ALWAYS_INLINE void visit_windows(DepthwisePass pass, Real *out, Real *x, Real *w,
                                 const Convolution *c, int64_t first, int64_t end)
{
    const Windows *s = &c->windows;
    for (int64_t n = first; n < end; n++) {
        const int64_t row = n / s->columns, b = row / s->rows;
        const int64_t top = row % s->rows * s->stride_y - s->padding_y;
        const int64_t left = n % s->columns * s->stride_x - s->padding_x;
        for (int64_t i = 0; i < s->height; i++)
            for (int64_t j = 0; j < s->width; j++) {
                const int64_t h = top + i * s->dilation, column = left + j * s->dilation;
                if (h >= 0 && h < s->H && column >= 0 && column < s->W)
                    add_products(pass, out + n * c->O, x + ((b * s->H + h) * s->W + column) * s->C,
                                 w + (i * s->width + j) * c->O, s->C, group_filters(c));
            }
    }
}

/* packed [taps, O] = weight [O, taps] */
static Real *packed_weight(const Real *weight, const Convolution *c)
{
    const int64_t taps = filter_size(c), O = c->O;
    Real *packed = device_workspace(O * taps);
    for (int64_t k = 0; k < taps; k++)
        for (int64_t o = 0; o < O; o++)
            packed[k * O + o] = weight[o * taps + k];
    return packed;
}

/* Nanoseconds for one window. */
static double depthwise_cost(const Convolution *c)
{
    return 5 + 0.2 * (double)(filter_size(c) * c->O);
}

static void depthwise_forward(Real *out, const Real *x, const Real *weight, const Real *bias,
                              const Convolution *c)
{
    const int64_t O = c->O, count = windows_count(&c->windows), threads = device_threads();
    Real *packed = packed_weight(weight, c);
    PRAGMA(omp parallel for schedule(static)
           num_threads(device_threads_for(count, depthwise_cost(c))))
    for (int64_t part = 0; part < threads; part++) {
        const int64_t first = part * count / threads, end = (part + 1) * count / threads;
        for (int64_t n = first; n < end; n++)
            for (int64_t o = 0; o < O; o++)
                out[n * O + o] = bias ? bias[o] : 0;
        visit_windows(OUT_PASS, out, (Real *)x, packed, c, first, end);
    }
    device_workspace_free(packed);
}

/* Windows of one image overlap: an image belongs to one thread. */
static void depthwise_backward_x(Gradient dx, const Real *dout, const Real *weight,
                                 const Convolution *c)
{
    const Windows *s = &c->windows;
    const int64_t image = s->H * s->W * s->C, per_image = s->rows * s->columns;
    const int threads = device_threads_for(s->B, depthwise_cost(c) * (double)per_image);
    Real *packed = packed_weight(weight, c);
    PRAGMA(omp parallel for schedule(static) num_threads(threads))
    for (int64_t b = 0; b < s->B; b++) {
        if (!dx.accumulate)
            memset(dx.data + b * image, 0, (size_t)image * sizeof *dx.data);
        visit_windows(X_PASS, (Real *)dout, dx.data, packed, c, b * per_image, (b + 1) * per_image);
    }
    device_workspace_free(packed);
}

/* Each thread sums its windows: in Real over runs of RUN, and the runs in double. */
static void depthwise_backward_weight(Gradient dweight, const Real *dout, const Real *x,
                                      const Convolution *c)
{
    enum { RUN = 4096, PER_DOUBLE = sizeof(double) / sizeof(Real) };
    const int64_t O = c->O, taps = filter_size(c), n = O * taps, threads = device_threads();
    const int64_t count = windows_count(&c->windows);
    Real *runs = device_workspace(threads * n);
    double *sums = (double *)(void *)device_workspace(threads * n * PER_DOUBLE);
    PRAGMA(omp parallel for schedule(static)
           num_threads(device_threads_for(count, depthwise_cost(c))))
    for (int64_t part = 0; part < threads; part++) {
        const int64_t end = (part + 1) * count / threads;
        Real *run = runs + part * n;
        double *sum = sums + part * n;
        memset(sum, 0, (size_t)n * sizeof *sum);
        for (int64_t first = part * count / threads; first < end; first += RUN) {
            memset(run, 0, (size_t)n * sizeof *run);
            visit_windows(WEIGHT_PASS, (Real *)dout, (Real *)x, run, c, first,
                          first + RUN < end ? first + RUN : end);
            for (int64_t k = 0; k < n; k++)
                sum[k] += (double)run[k];
        }
    }
    for (int64_t i = 0; i < n; i++) { /* weight i = [o, tap] */
        double sum = 0;
        for (int64_t part = 0; part < threads; part++)
            sum += sums[part * n + i % taps * O + i / taps];
        gradient_add(dweight, i, (Real)sum);
    }
    device_workspace_free((Real *)(void *)sums);
    device_workspace_free(runs);
}

/* --------------------------------------------------------------------------------------- groups */
void grouped_forward(Real *out, const Real *x, const Real *weight, const Real *bias,
                     const Convolution *c)
{
    if (group_channels(c) == 1) {
        depthwise_forward(out, x, weight, bias, c);
        return;
    }
    const Group group = group_begin(c);
    const int64_t filters = group.c.O;
    for (int64_t g = 0; g < c->groups; g++) {
        copy_columns_from(group.x, x, g, pixel_count(c), c->windows.C, c);
        conv2d_forward_cpu(group.out, group.x, weight + g * filters * filter_size(c),
                           bias ? bias + g * filters : NULL, group.c);
        copy_columns_to((Gradient){ out, false }, group.out, g, windows_count(&c->windows), c->O,
                        c);
    }
    group_end(group);
}

void grouped_backward_x(Gradient dx, const Real *dout, const Real *weight, const Convolution *c)
{
    if (group_channels(c) == 1) {
        depthwise_backward_x(dx, dout, weight, c);
        return;
    }
    const Group group = group_begin(c);
    for (int64_t g = 0; g < c->groups; g++) {
        copy_columns_from(group.out, dout, g, windows_count(&c->windows), c->O, c);
        conv2d_backward_x_cpu((Gradient){ group.x, false }, group.out,
                              weight + g * group.c.O * filter_size(c), group.c);
        copy_columns_to(dx, group.x, g, pixel_count(c), c->windows.C, c);
    }
    group_end(group);
}

void grouped_backward_weight(Gradient dweight, const Real *dout, const Real *x,
                             const Convolution *c)
{
    if (group_channels(c) == 1) {
        depthwise_backward_weight(dweight, dout, x, c);
        return;
    }
    const Group group = group_begin(c);
    for (int64_t g = 0; g < c->groups; g++) {
        copy_columns_from(group.x, x, g, pixel_count(c), c->windows.C, c);
        copy_columns_from(group.out, dout, g, windows_count(&c->windows), c->O, c);
        conv2d_backward_weight_cpu(gradient_from(dweight, g * group.c.O * filter_size(c)),
                                   group.out, group.x, group.c);
    }
    group_end(group);
}
