/* conv2d's kernels on the CPU: by oneDNN where the device uses it, else by im2col.c. Activations in
 * bf16 are converted to Real where processors have no products of bf16. */
#include "ext/images/cpu/conv2d.h"
#include "ops/cpu/shared/bf16.h"
#include "ops/cpu/shared/multiply.h"

static const ConvolutionKernels *kernels_for_reals(void)
{
#ifdef TAPEGRAD_ONEDNN
    if (uses_onednn())
        return &convolution_onednn;
#endif
    return &convolution_im2col;
}

/* NULL: the device has no products of bf16. */
static const ConvolutionKernels *kernels_for_bf16(void)
{
#ifdef TAPEGRAD_ONEDNN
    if (device_has_bf16(device_current()))
        return &convolution_onednn_bf16;
#endif
    return NULL;
}

static void conv2d_forward_cpu(Real *out, const Real *x, const Real *weight, const Real *bias,
                               Convolution c)
{
    kernels_for_reals()->forward(out, x, weight, bias, c);
}

static void conv2d_backward_x_cpu(Gradient dx, const Real *dout, const Real *weight, Convolution c)
{
    kernels_for_reals()->backward_x(dx, dout, weight, c);
}

static void conv2d_backward_weight_cpu(Gradient dweight, const Real *dout, const Real *x,
                                       Convolution c)
{
    kernels_for_reals()->backward_weight(dweight, dout, x, c);
}

static int64_t image_elements(const Windows *w)
{
    return w->B * w->H * w->W * w->C;
}

static void conv2d_forward_bf16(Real *out, const Real *x, const Real *weight, const Real *bias,
                                Convolution c)
{
    if (kernels_for_bf16()) {
        kernels_for_bf16()->forward(out, x, weight, bias, c);
        return;
    }
    const int64_t n = windows_count(&c.windows) * c.O;
    Real *x_values = bf16_reals(x, image_elements(&c.windows)), *values = device_workspace(n);
    conv2d_forward_cpu(values, x_values, weight, bias, c);
    cast_cpu((Gradient){ out, false }, values, true, n);
    device_workspace_free(values);
    device_workspace_free(x_values);
}

static void conv2d_backward_x_bf16(Gradient dx, const Real *dout, const Real *weight, Convolution c)
{
    if (kernels_for_bf16()) {
        kernels_for_bf16()->backward_x(dx, dout, weight, c);
        return;
    }
    const int64_t n = image_elements(&c.windows);
    Real *upstream = bf16_reals(dout, windows_count(&c.windows) * c.O);
    Real *values = device_workspace(n);
    conv2d_backward_x_cpu((Gradient){ values, false }, upstream, weight, c);
    cast_cpu(dx, values, true, n);
    device_workspace_free(values);
    device_workspace_free(upstream);
}

static void conv2d_backward_weight_bf16(Gradient dweight, const Real *dout, const Real *x,
                                        Convolution c)
{
    if (kernels_for_bf16()) {
        kernels_for_bf16()->backward_weight(dweight, dout, x, c);
        return;
    }
    Real *upstream = bf16_reals(dout, windows_count(&c.windows) * c.O);
    Real *x_values = bf16_reals(x, image_elements(&c.windows));
    conv2d_backward_weight_cpu(dweight, upstream, x_values, c);
    device_workspace_free(x_values);
    device_workspace_free(upstream);
}

const ConvolutionKernels convolution_cpu = { conv2d_forward_cpu, conv2d_backward_x_cpu,
                                             conv2d_backward_weight_cpu };
const ConvolutionKernels convolution_cpu_bf16 = { conv2d_forward_bf16, conv2d_backward_x_bf16,
                                                  conv2d_backward_weight_bf16 };
