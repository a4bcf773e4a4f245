/* conv2d on CUDA, as matrix products by cuBLAS: the windows of some images at a time (unfold).
 * Groups have kernels of their own: grouped.cu. */
#include "ext/images/cuda/conv2d.h"

/* Some of the images, and what belongs to them. */
typedef struct Chunk {
    Convolution c;
    Product p;            /* n: their windows */
    int64_t pixels, outs; /* before them, in elements of x and of out */
} Chunk;

/* The images from *next on whose windows have at most LIMIT elements, but one image at least;
 * advances *next. Returns false after the last one. */
static bool next_chunk(Chunk *chunk, const Convolution *c, int64_t *next)
{
#ifdef TAPEGRAD_CUDA_ON_HOST
    enum { LIMIT = 1 << 10 }; /* the tests' small images take several chunks */
#else
    enum { LIMIT = 1 << 24 };
#endif
    const Windows *w = &c->windows;
    const int64_t per_image = w->rows * w->columns, size = window_size(w);
    const int64_t fit = LIMIT / (per_image * size), images = fit > 1 ? fit : 1, first = *next;
    *chunk = (Chunk){ *c, .pixels = first * w->H * w->W * w->C, .outs = first * per_image * c->O };
    chunk->c.windows.B = w->B - first < images ? w->B - first : images;
    chunk->p = (Product){
        .n = chunk->c.windows.B * per_image, .k = size, .m = c->O, .transpose_b = true, .count = 1
    };
    *next += images;
    return first < w->B;
}

static Real *at(TensorType type, const Real *x, int64_t i)
{
    return (Real *)((char *)x + i * (type == TENSOR_BF16 ? 2 : (int64_t)sizeof(Real)));
}

/* A workspace for the windows of the largest chunk, the first. */
static Real *windows_workspace(const Convolution *c)
{
    int64_t next = 0;
    Chunk first;
    next_chunk(&first, c, &next);
    return device_workspace(first.p.n * first.p.k);
}

/* The weights in the dtype of the activations: a workspace for bf16. */
static Real *weight_copy(TensorType type, const Real *weight, const Convolution *c)
{
    const int64_t n = c->O * window_size(&c->windows);
    Real *copy = type == TENSOR_BF16 ? device_workspace(n) : NULL;
    if (copy)
        cast_cuda((Gradient){ copy, false }, weight, true, n);
    return copy;
}

void conv2d_forward_cuda(TensorType type, Real *out, const Real *x, const Real *weight,
                         const Real *bias, Convolution c)
{
    if (c.groups > 1) {
        grouped_forward_cuda(type, out, x, weight, bias, c);
        return;
    }
    Real *windows = windows_workspace(&c), *copy = weight_copy(type, weight, &c);
    Chunk chunk;
    for (int64_t next = 0; next_chunk(&chunk, &c, &next);) {
        unfold_cuda_windows(type, windows, at(type, x, chunk.pixels), chunk.c.windows);
        product_cuda(c.precision, (Result){ at(type, out, chunk.outs), type, false },
                     (Operand){ windows, type }, (Operand){ copy ? copy : weight, type }, chunk.p);
    }
    if (bias)
        linear_activate_cuda(type, out, NULL, bias, ACTIVATION_NONE, windows_count(&c.windows),
                             c.O);
    device_workspace_free(copy);
    device_workspace_free(windows);
}

void conv2d_backward_x_cuda(TensorType type, Gradient dx, const Real *dout, const Real *weight,
                            Convolution c)
{
    if (c.groups > 1) {
        grouped_backward_x_cuda(type, dx, dout, weight, c);
        return;
    }
    Real *windows = windows_workspace(&c), *copy = weight_copy(type, weight, &c);
    Chunk chunk;
    for (int64_t next = 0; next_chunk(&chunk, &c, &next);) {
        const Product p = { .n = chunk.p.n, .k = c.O, .m = chunk.p.k, .count = 1 };
        product_cuda(c.precision, (Result){ windows, type, false },
                     (Operand){ at(type, dout, chunk.outs), type },
                     (Operand){ copy ? copy : weight, type }, p);
        fold_cuda(type, (Gradient){ at(type, dx.data, chunk.pixels), dx.accumulate }, windows,
                  chunk.c.windows);
    }
    device_workspace_free(copy);
    device_workspace_free(windows);
}

void conv2d_backward_weight_cuda(TensorType type, Gradient dweight, const Real *dout, const Real *x,
                                 Convolution c)
{
    if (c.groups > 1) {
        grouped_backward_weight_cuda(type, dweight, dout, x, c);
        return;
    }
    Real *windows = windows_workspace(&c);
    Chunk chunk;
    for (int64_t next = 0; next_chunk(&chunk, &c, &next); dweight.accumulate = true) {
        const Product p = {
            .n = c.O, .k = chunk.p.n, .m = chunk.p.k, .transpose_a = true, .count = 1
        };
        unfold_cuda_windows(type, windows, at(type, x, chunk.pixels), chunk.c.windows);
        product_cuda(c.precision, (Result){ dweight.data, TENSOR_REAL, dweight.accumulate },
                     (Operand){ at(type, dout, chunk.outs), type }, (Operand){ windows, type }, p);
    }
    device_workspace_free(windows);
}
