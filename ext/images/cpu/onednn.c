/* conv2d by oneDNN's convolution primitive: each thread computes some of the images. Its kernels
 * read weights in a layout of their own, and write their gradient in it; copies are small beside
 * the images. The gradient by the weights is summed by each thread in float32 over its images, and
 * then in double over the threads. */
#include "ext/images/cpu/conv2d.h"
#include "ops/cpu/shared/onednn.h"
#include "ops/cpu/shared/storage.h"
#include "ops/cpu/shared/tiles.h"

enum { X, WEIGHT, BIAS, OUT, TENSORS };

/* One of three passes: the tensor that it computes, and from what. data[BIAS] is NULL or read. */
typedef struct ConvolutionPass {
    int result; /* OUT, X or WEIGHT */
    Convolution c;
    TensorType type[TENSORS];
    Real *data[TENSORS];
} ConvolutionPass;

static dnnl_data_type_t storage_of(TensorType type)
{
    return type == TENSOR_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* Images [B, H, W, C], in oneDNN's order of the axes. */
static bool describe_images(dnnl_memory_desc_t *images, TensorType type, int64_t B, int64_t C,
                            int64_t H, int64_t W)
{
    const dnnl_dims_t sizes = { B, C, H, W }, strides = { H * W * C, 1, W * C, C };
    return dnnl_memory_desc_init_by_strides(images, 4, sizes, storage_of(type), strides) ==
           dnnl_success;
}

/* Weights [O, height, width, C] of all groups, as we store them, or in a layout that oneDNN
 * chooses. */
static bool describe_weights(dnnl_memory_desc_t *weights, TensorType type, const Convolution *c,
                             bool chosen)
{
    const int64_t C = group_channels(c), O = group_filters(c);
    const int64_t height = c->windows.height, width = c->windows.width;
    const dnnl_dims_t sizes = { c->groups, O, C, height, width };
    const dnnl_dims_t strides = { O * filter_size(c), filter_size(c), 1, width * C, C };
    if (chosen)
        return dnnl_memory_desc_init_by_tag(weights, 5, sizes, storage_of(type),
                                            dnnl_format_tag_any) == dnnl_success;
    return dnnl_memory_desc_init_by_strides(weights, 5, sizes, storage_of(type), strides) ==
           dnnl_success;
}

static bool describe_convolution(dnnl_convolution_desc_t *convolution, const ConvolutionPass *pass)
{
    const Convolution *c = &pass->c;
    const Windows *w = &c->windows;
    const dnnl_dims_t strides = { w->stride_y, w->stride_x }, bias_size = { c->O };
    const dnnl_dims_t between = { w->dilation - 1, w->dilation - 1 };
    const dnnl_dims_t padding = { w->padding_y, w->padding_x };
    dnnl_memory_desc_t x, weights, bias, out;
    if (!describe_images(&x, pass->type[X], w->B, w->C, w->H, w->W) ||
        !describe_images(&out, pass->type[OUT], w->B, c->O, w->rows, w->columns) ||
        !describe_weights(&weights, pass->type[WEIGHT], c, true) ||
        dnnl_memory_desc_init_by_tag(&bias, 1, bias_size, dnnl_f32, dnnl_x) != dnnl_success)
        return false;
    if (pass->result == OUT)
        return dnnl_dilated_convolution_forward_desc_init(
                   convolution, dnnl_forward_training, dnnl_convolution_direct, &x, &weights,
                   pass->data[BIAS] ? &bias : NULL, &out, strides, between, padding,
                   padding) == dnnl_success;
    if (pass->result == X)
        return dnnl_dilated_convolution_backward_data_desc_init(
                   convolution, dnnl_convolution_direct, &x, &weights, &out, strides, between,
                   padding, padding) == dnnl_success;
    return dnnl_dilated_convolution_backward_weights_desc_init(
               convolution, dnnl_convolution_direct, &x, &weights, NULL, &out, strides, between,
               padding, padding) == dnnl_success;
}

/* to = from, in to's layout and type */
static bool copy_memory(dnnl_engine_t engine, dnnl_stream_t stream, dnnl_memory_t to,
                        dnnl_memory_t from)
{
    const dnnl_memory_desc_t *to_desc, *from_desc;
    dnnl_primitive_desc_t description = NULL;
    dnnl_primitive_t copy = NULL;
    const dnnl_exec_arg_t arguments[] = { { DNNL_ARG_FROM, from }, { DNNL_ARG_TO, to } };
    const bool ok = dnnl_memory_get_memory_desc(to, &to_desc) == dnnl_success &&
                    dnnl_memory_get_memory_desc(from, &from_desc) == dnnl_success &&
                    dnnl_reorder_primitive_desc_create(&description, from_desc, engine, to_desc,
                                                       engine, NULL) == dnnl_success &&
                    dnnl_primitive_create(&copy, description) == dnnl_success &&
                    dnnl_primitive_execute(copy, stream, 2, arguments) == dnnl_success;
    dnnl_primitive_destroy(copy);
    dnnl_primitive_desc_destroy(description);
    return ok;
}

/* Each tensor's memory, as the primitive reads and writes it; the weights' is oneDNN's own. */
static bool create_memories(dnnl_memory_t *memories, dnnl_engine_t engine,
                            dnnl_primitive_desc_t description, const ConvolutionPass *pass)
{
    const bool to_x = pass->result == X, to_weight = pass->result == WEIGHT;
    const dnnl_query_t queries[TENSORS] = {
        [X] = to_x ? dnnl_query_diff_src_md : dnnl_query_src_md,
        [WEIGHT] = to_weight ? dnnl_query_diff_weights_md : dnnl_query_weights_md,
        [BIAS] = dnnl_query_weights_md,
        [OUT] = to_x || to_weight ? dnnl_query_diff_dst_md : dnnl_query_dst_md,
    };
    for (int i = 0; i < TENSORS; i++) {
        void *data = i == WEIGHT ? DNNL_MEMORY_ALLOCATE : pass->data[i];
        if (data &&
            dnnl_memory_create(&memories[i],
                               dnnl_primitive_desc_query_md(description, queries[i], i == BIAS),
                               engine, data) != dnnl_success)
            return false;
    }
    return true;
}

static bool execute(dnnl_stream_t stream, dnnl_primitive_t convolution,
                    const dnnl_memory_t *memories, int result)
{
    const dnnl_exec_arg_t arguments[TENSORS] = {
        { result == X ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, memories[X] },
        { result == WEIGHT ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, memories[WEIGHT] },
        { result == OUT ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST, memories[OUT] },
        { DNNL_ARG_BIAS, memories[BIAS] },
    };
    const int count = memories[BIAS] ? TENSORS : TENSORS - 1;
    return dnnl_primitive_execute(convolution, stream, count, arguments) == dnnl_success;
}

/* Returns false if memory is exhausted. */
static bool convolve_images(const ConvolutionPass *pass)
{
    dnnl_engine_t engine = NULL;
    dnnl_stream_t stream = NULL;
    dnnl_convolution_desc_t convolution;
    dnnl_primitive_desc_t description = NULL;
    dnnl_primitive_t primitive = NULL;
    dnnl_memory_desc_t ours;
    dnnl_memory_t memories[TENSORS] = { NULL }, weights = NULL;
    const bool to_weight = pass->result == WEIGHT;
    const sigset_t before = onednn_block_signals();
    omp_set_num_threads(1); /* until the region ends */
    bool ok = describe_convolution(&convolution, pass) &&
              describe_weights(&ours, TENSOR_REAL, &pass->c, false) &&
              dnnl_engine_create(&engine, dnnl_cpu, 0) == dnnl_success &&
              dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) == dnnl_success &&
              dnnl_primitive_desc_create(&description, &convolution, NULL, engine, NULL) ==
                  dnnl_success &&
              dnnl_primitive_create(&primitive, description) == dnnl_success &&
              create_memories(memories, engine, description, pass) &&
              dnnl_memory_create(&weights, &ours, engine, pass->data[WEIGHT]) == dnnl_success &&
              (to_weight || copy_memory(engine, stream, memories[WEIGHT], weights)) &&
              execute(stream, primitive, memories, pass->result) &&
              (!to_weight || copy_memory(engine, stream, weights, memories[WEIGHT])) &&
              dnnl_stream_wait(stream) == dnnl_success;
    dnnl_memory_destroy(weights);
    for (int i = 0; i < TENSORS; i++)
        dnnl_memory_destroy(memories[i]);
    dnnl_primitive_destroy(primitive);
    dnnl_primitive_desc_destroy(description);
    dnnl_stream_destroy(stream);
    dnnl_engine_destroy(engine);
    onednn_restore_signals(before);
    return ok;
}

/* The pass on the images of part `part` of `parts`. */
static ConvolutionPass part_of(ConvolutionPass pass, int64_t part, int64_t parts)
{
    Windows *w = &pass.c.windows;
    const int64_t first = part * w->B / parts, weights = pass.c.O * filter_size(&pass.c);
    const int64_t out_image = w->rows * w->columns * pass.c.O;
    pass.data[X] = elements_at((int)pass.type[X], pass.data[X], first * w->H * w->W * w->C);
    pass.data[OUT] = elements_at((int)pass.type[OUT], pass.data[OUT], first * out_image);
    if (pass.result == WEIGHT)
        pass.data[WEIGHT] += part * weights;
    w->B = (part + 1) * w->B / parts - first;
    return pass;
}

static int64_t parts_of(const Convolution *c)
{
    return minimum(device_threads(), c->windows.B);
}

static void convolve(ConvolutionPass pass)
{
    const Windows *w = &pass.c.windows;
    const int64_t parts = parts_of(&pass.c);
    const double cost = /* nanoseconds per image */
        1000 + 0.02 * (double)(w->rows * w->columns * pass.c.O * filter_size(&pass.c));
    bool ok = true;
    PRAGMA(omp parallel for schedule(static) reduction(&& : ok)
               num_threads(device_threads_for(w->B, cost)))
    for (int64_t part = 0; part < parts; part++) {
        const ConvolutionPass own = part_of(pass, part, parts);
        ok = convolve_images(&own) && ok;
    }
    if (!ok)
        error_raise("op_conv2d: memory is exhausted: a convolution could not allocate its "
                    "workspace");
}

/* ------------------------------------------------------------------------------ the passes */
static void conv2d_forward_as(TensorType type, Real *out, const Real *x, const Real *weight,
                              const Real *bias, Convolution c)
{
    convolve((ConvolutionPass){ OUT,
                                c,
                                { type, type, TENSOR_REAL, type },
                                { (Real *)x, (Real *)weight, (Real *)bias, out } });
}

static void conv2d_backward_x_as(TensorType type, Gradient dx, const Real *dout, const Real *weight,
                                 Convolution c)
{
    const Windows *w = &c.windows;
    const int64_t n = w->B * w->H * w->W * w->C;
    Real *values = dx.accumulate ? device_workspace(n) : dx.data;
    const TensorType result = dx.accumulate ? TENSOR_REAL : type;
    convolve((ConvolutionPass){ X,
                                c,
                                { result, type, TENSOR_REAL, type },
                                { values, (Real *)weight, NULL, (Real *)dout } });
    if (!dx.accumulate)
        return;
    if (type == TENSOR_BF16)
        cast_cpu(dx, values, true, n);
    else
        EACH(i, n)
            dx.data[i] += values[i];
    device_workspace_free(values);
}

static void conv2d_backward_weight_as(TensorType type, Gradient dweight, const Real *dout,
                                      const Real *x, Convolution c)
{
    const int64_t n = c.O * filter_size(&c), parts = parts_of(&c);
    Real *sums = device_workspace(parts * n);
    convolve((ConvolutionPass){ WEIGHT,
                                c,
                                { type, TENSOR_REAL, TENSOR_REAL, type },
                                { (Real *)x, sums, NULL, (Real *)dout } });
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t part = 0; part < parts; part++)
            sum += sums[part * n + i];
        gradient_add(dweight, i, (Real)sum);
    }
    device_workspace_free(sums);
}

/* --------------------------------------------------------------------------------- both dtypes */
static void conv2d_forward_onednn(Real *out, const Real *x, const Real *weight, const Real *bias,
                                  Convolution c)
{
    conv2d_forward_as(TENSOR_REAL, out, x, weight, bias, c);
}

static void conv2d_backward_x_onednn(Gradient dx, const Real *dout, const Real *weight,
                                     Convolution c)
{
    conv2d_backward_x_as(TENSOR_REAL, dx, dout, weight, c);
}

static void conv2d_backward_weight_onednn(Gradient dweight, const Real *dout, const Real *x,
                                          Convolution c)
{
    conv2d_backward_weight_as(TENSOR_REAL, dweight, dout, x, c);
}

static void conv2d_forward_onednn_bf16(Real *out, const Real *x, const Real *weight,
                                       const Real *bias, Convolution c)
{
    conv2d_forward_as(TENSOR_BF16, out, x, weight, bias, c);
}

static void conv2d_backward_x_onednn_bf16(Gradient dx, const Real *dout, const Real *weight,
                                          Convolution c)
{
    conv2d_backward_x_as(TENSOR_BF16, dx, dout, weight, c);
}

static void conv2d_backward_weight_onednn_bf16(Gradient dweight, const Real *dout, const Real *x,
                                               Convolution c)
{
    conv2d_backward_weight_as(TENSOR_BF16, dweight, dout, x, c);
}

const ConvolutionKernels convolution_onednn = { conv2d_forward_onednn, conv2d_backward_x_onednn,
                                                conv2d_backward_weight_onednn };
const ConvolutionKernels convolution_onednn_bf16 = { conv2d_forward_onednn_bf16,
                                                     conv2d_backward_x_onednn_bf16,
                                                     conv2d_backward_weight_onednn_bf16 };
