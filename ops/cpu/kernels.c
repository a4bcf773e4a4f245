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
    .causal_linear_attention_forward = causal_linear_attention_forward_cpu,
    .causal_linear_attention_backward = causal_linear_attention_backward_cpu,
    .linear_attention_forward = linear_attention_forward_cpu,
    .linear_attention_backward = linear_attention_backward_cpu,
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
    /* layout */
    /* losses */
    /* recurrent */
    /* sampling */
    /* attention: linear */
    .causal_linear_attention_forward = causal_linear_attention_forward_bf16,
    .causal_linear_attention_backward = causal_linear_attention_backward_bf16,
    .linear_attention_forward = linear_attention_forward_bf16,
    .linear_attention_backward = linear_attention_backward_bf16,
    /* attention: softmax */
    /* attention: lsh */
    /* attention: feature maps */
    .polynomial_features_forward = polynomial_features_forward_bf16,
    .polynomial_features_backward = polynomial_features_backward_bf16,
    .random_features_forward = random_features_forward_bf16,
    .random_features_backward = random_features_backward_bf16,
};
