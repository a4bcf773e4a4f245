/* The CPU backend's kernels: its table of contents. */
#include "ops/kernels.h"

#pragma GCC diagnostic ignored "-Woverride-init" /* first the plain kernels, then the backend's */
#ifdef __clang__
#pragma GCC diagnostic ignored "-Winitializer-overrides"
#endif

const Kernels cpu_kernels = {
#define KERNEL(name, parameters) .name = name##_plain,
#define REAL_KERNEL KERNEL
#define FUSED_KERNEL(name, parameters)
#define BACKEND_KERNEL(name, parameters)
#include "ops/kernel_list.h"
#undef KERNEL
#undef REAL_KERNEL
#undef FUSED_KERNEL
#undef BACKEND_KERNEL
    /* elementwise */
    .broadcast_sum = broadcast_sum_cpu,
    .dropout = dropout_cpu,
    .cast = cast_cpu,
    /* rows */
    .layernorm_backward = layernorm_backward_cpu,
    .residual_layernorm_forward = residual_layernorm_forward_cpu,
    .residual_layernorm_backward = residual_layernorm_backward_cpu,
    .argmax = argmax_cpu,
    .column_sums = column_sums_cpu,
    /* products */
    .product = product_cpu,
    .linear_forward = linear_forward_cpu,
    .linear_activate_backward = linear_activate_backward_cpu,
    /* layout */
    .embedding_backward = embedding_backward_cpu,
    .transpose = transpose_cpu,
    /* losses */
    /* attention: linear */
    .causal_linear_attention_forward = causal_linear_attention_forward_cpu,
    .causal_linear_attention_backward = causal_linear_attention_backward_cpu,
    .causal_linear_state_forward = causal_linear_state_forward_cpu,
    .causal_linear_state_backward = causal_linear_state_backward_cpu,
    .linear_attention_forward = linear_attention_forward_cpu,
    .linear_attention_backward = linear_attention_backward_cpu,
    /* attention: softmax */
    .softmax_attention_forward = softmax_attention_forward_cpu,
    .softmax_attention_backward = softmax_attention_backward_cpu,
    /* attention: feature maps */
    /* parameters and optimizers */
};

/* Every kernel that reads or writes activations. */
const Kernels cpu_bf16_kernels = {
    /* elementwise */
    .unary_forward = unary_forward_bf16,
    .unary_backward = unary_backward_bf16,
    .binary_forward = binary_forward_bf16,
    .binary_backward = binary_backward_bf16,
    .where_forward = where_forward_bf16,
    .where_backward = where_backward_bf16,
    .broadcast_copy = broadcast_copy_bf16,
    .broadcast_sum = broadcast_sum_bf16,
    .dropout = dropout_bf16,
    /* rows */
    .softmax_forward = softmax_forward_bf16,
    .softmax_backward = softmax_backward_bf16,
    .log_softmax_forward = log_softmax_forward_bf16,
    .log_softmax_backward = log_softmax_backward_bf16,
    .layernorm_forward = layernorm_forward_bf16,
    .layernorm_backward = layernorm_backward_bf16,
    .residual_layernorm_forward = residual_layernorm_forward_bf16,
    .residual_layernorm_backward = residual_layernorm_backward_bf16,
    .argmax = argmax_bf16,
    .cumulative_sum = cumulative_sum_bf16,
    .column_sums = column_sums_bf16,
    /* products */
    .linear_activate = linear_activate_bf16,
    .linear_activate_backward = linear_activate_backward_bf16,
    /* layout */
    .copy_rows = copy_rows_bf16,
    .transpose = transpose_bf16,
    .embedding_forward = embedding_forward_bf16,
    .embedding_backward = embedding_backward_bf16,
    .gather_forward = gather_forward_bf16,
    .gather_backward = gather_backward_bf16,
    /* losses */
    .cross_entropy_forward = cross_entropy_forward_bf16,
    .cross_entropy_backward = cross_entropy_backward_bf16,
    .mean_squared_error_forward = mean_squared_error_forward_bf16,
    .mean_squared_error_backward = mean_squared_error_backward_bf16,
    /* attention: linear */
    .causal_linear_attention_forward = causal_linear_attention_forward_bf16,
    .causal_linear_attention_backward = causal_linear_attention_backward_bf16,
    .causal_linear_state_forward = causal_linear_state_forward_bf16,
    .causal_linear_state_backward = causal_linear_state_backward_bf16,
    .linear_attention_forward = linear_attention_forward_bf16,
    .linear_attention_backward = linear_attention_backward_bf16,
    /* attention: softmax */
    .softmax_attention_forward = softmax_attention_forward_bf16,
    .softmax_attention_backward = softmax_attention_backward_bf16,
};
