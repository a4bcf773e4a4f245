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
    /* layout */
    /* losses */
    /* recurrent */
    /* sampling */
    /* attention: linear */
    /* attention: softmax */
    .softmax_attention_forward = softmax_attention_forward_cpu,
    .softmax_attention_backward = softmax_attention_backward_cpu,
    /* attention: lsh */
    .lsh_attention_forward = lsh_attention_forward_cpu,
    .lsh_attention_backward = lsh_attention_backward_cpu,
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
    /* layout */
    /* losses */
    /* recurrent */
    /* sampling */
    /* attention: linear */
    /* attention: softmax */
    .softmax_attention_forward = softmax_attention_forward_bf16,
    .softmax_attention_backward = softmax_attention_backward_bf16,
    /* attention: lsh */
    .lsh_attention_forward = lsh_attention_forward_bf16,
    .lsh_attention_backward = lsh_attention_backward_bf16,
    /* attention: feature maps */
};
