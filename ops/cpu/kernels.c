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
    /* attention: lsh */
    /* attention: feature maps */
    /* parameters and optimizers */
    .sgd_step = sgd_step_cpu,
    .sgd_momentum_step = sgd_momentum_step_cpu,
    .adam_step = adam_step_cpu,
    /* decoding */
    .store_keys_values = store_keys_values_cpu,
    .transformer_step = transformer_step_cpu,
    .quantize_weight = quantize_weight_cpu,
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
    /* attention: lsh */
    /* attention: feature maps */
};
