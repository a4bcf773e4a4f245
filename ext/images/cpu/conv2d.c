/* conv2d's kernels on the CPU. Activations in bf16 are converted to Real where processors have no
 * products of bf16. */
#include "ext/images/cpu/conv2d.h"
#include "ops/cpu/shared/bf16.h"

static void conv2d_forward_cpu(Real *out, const Real *x, const Real *weight, const Real *bias,
                               Convolution c)
{
    conv2d_forward_as(TENSOR_REAL, out, x, weight, bias, c);
}

static void conv2d_backward_x_cpu(Gradient dx, const Real *dout, const Real *weight, Convolution c)
{
    conv2d_backward_x_as(TENSOR_REAL, dx, dout, weight, c);
}

static void conv2d_backward_weight_cpu(Gradient dweight, const Real *dout, const Real *x,
                                       Convolution c)
{
    conv2d_backward_weight_as(TENSOR_REAL, dweight, dout, x, c);
}

static bool has_products(void)
{
    return device_has_bf16(device_current());
}

static int64_t image_elements(const Windows *w)
{
    return w->B * w->H * w->W * w->C;
}

static void conv2d_forward_bf16(Real *out, const Real *x, const Real *weight, const Real *bias,
                                Convolution c)
{
    if (has_products()) {
        conv2d_forward_as(TENSOR_BF16, out, x, weight, bias, c);
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
    if (has_products()) {
        conv2d_backward_x_as(TENSOR_BF16, dx, dout, weight, c);
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
    if (has_products()) {
        conv2d_backward_weight_as(TENSOR_BF16, dweight, dout, x, c);
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
