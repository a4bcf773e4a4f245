/* The CPU backend's kernels: its table of contents. */
#include "ops/kernels.h"

#pragma GCC diagnostic ignored "-Woverride-init" /* first the plain kernels, then the backend's */
#ifdef __clang__
#pragma GCC diagnostic ignored "-Winitializer-overrides"
#endif

const Kernels cpu_kernels = {
#define KERNEL(name, parameters) .name = name##_plain,
#define REAL_KERNEL KERNEL
#define BACKEND_KERNEL(name, parameters)
#include "ops/kernel_list.h"
#undef KERNEL
#undef REAL_KERNEL
#undef BACKEND_KERNEL
    /* elementwise */
    /* rows */
    /* products */
    .product = product_cpu,
    .linear_forward = linear_forward_cpu,
    .linear_activate_backward = linear_activate_backward_cpu,
    /* layout */
    /* losses */
    /* recurrent */
    /* sampling */
    /* attention: linear */
    /* attention: softmax */
    /* attention: lsh */
    /* attention: feature maps */
    /* parameters and optimizers */
    /* decoding */
};

/* Every kernel that reads or writes activations. */
const Kernels cpu_bf16_kernels = {
    /* elementwise */
    /* rows */
    .softmax_forward = softmax_forward_bf16,
    .softmax_backward = softmax_backward_bf16,
    /* products */
    .linear_activate = linear_activate_bf16,
    .linear_activate_backward = linear_activate_backward_bf16,
    /* layout */
    /* losses */
    /* recurrent */
    /* sampling */
    /* attention: linear */
    /* attention: softmax */
    /* attention: lsh */
    /* attention: feature maps */
};
