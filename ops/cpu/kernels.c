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
    .broadcast_sum = broadcast_sum_cpu,
    .dropout = dropout_cpu,
    .cast = cast_cpu,
    /* rows */
    /* products */
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
    .unary_forward = unary_forward_bf16,
    .unary_backward = unary_backward_bf16,
    .binary_forward = binary_forward_bf16,
    .binary_backward = binary_backward_bf16,
    .broadcast_copy = broadcast_copy_bf16,
    .broadcast_sum = broadcast_sum_bf16,
    .dropout = dropout_bf16,
    /* rows */
    .softmax_forward = softmax_forward_bf16,
    .softmax_backward = softmax_backward_bf16,
    /* products */
    /* layout */
    /* losses */
    /* recurrent */
    /* sampling */
    /* attention: linear */
    /* attention: softmax */
    /* attention: lsh */
    /* attention: feature maps */
};
