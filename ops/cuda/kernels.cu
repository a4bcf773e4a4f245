/* The CUDA backend's kernels: its table of contents. */
#include "ops/kernels.h"
#include "tensor/cuda/kernel.cuh"

/* A launcher's kernel of one dtype, which is the launcher's first argument. */
template <auto launcher, TensorType type, typename... P> static void call(P... arguments)
{
    launcher(type, arguments...);
}

template <TensorType type> static Kernels table(void)
{
    Kernels k = {};
#define USE(kernel) k.kernel = call<kernel##_cuda, type>
#define USE_REAL(kernel) k.kernel = kernel##_cuda
    /* elementwise */
    USE(unary_forward);
    USE(unary_backward);
    USE(binary_forward);
    USE(binary_backward);
    USE(broadcast_copy);
    USE(broadcast_sum);
    USE(dropout);
    USE_REAL(cast);
    /* rows */
    USE(softmax_forward);
    USE(softmax_backward);
    USE(log_softmax_forward);
    USE(log_softmax_backward);
    USE(layernorm_forward);
    USE(layernorm_backward);
    USE(residual_layernorm_forward);
    USE(residual_layernorm_backward);
    USE(argmax);
    USE(cumulative_sum);
    USE(column_sums);
    /* products */
    USE_REAL(product);
    USE_REAL(linear_forward);
    USE(linear_activate);
    USE(linear_activate_backward);
    /* layout */
    USE(copy_rows);
    USE(transpose);
    USE(embedding_forward);
    USE(embedding_backward);
    USE(gather_forward);
    USE(gather_backward);
    USE(unfold);
    USE(fold);
    USE_REAL(store_integers);
    /* losses */
    USE(ctc_forward);
    USE(ctc_backward);
    USE(cross_entropy_forward);
    USE(cross_entropy_backward);
    USE(mean_squared_error_forward);
    USE(mean_squared_error_backward);
    USE(logistic_mixture_forward);
    USE(logistic_mixture_backward);
    /* recurrent */
    USE_REAL(lstm_forward);
    USE_REAL(lstm_backward);
    USE_REAL(gru_forward);
    USE_REAL(gru_backward);
    USE_REAL(gru_hidden_gates);
    USE_REAL(previous_hidden);
    /* sampling */
    USE(sample);
    USE(sample_logistic_mixture);
    /* attention: linear */
    USE(causal_linear_attention_forward);
    USE(causal_linear_attention_backward);
    USE(linear_attention_forward);
    USE(linear_attention_backward);
    /* attention: softmax */
    USE(softmax_attention_forward);
    USE(softmax_attention_backward);
    /* attention: lsh */
    USE(lsh_attention_forward);
    USE(lsh_attention_backward);
    /* attention: feature maps */
    USE(polynomial_features_forward);
    USE(polynomial_features_backward);
    USE(random_features_forward);
    USE(random_features_backward);
    /* parameters and optimizers */
    USE_REAL(sum_squares);
    USE_REAL(clip_gradients);
    USE_REAL(sgd_step);
    USE_REAL(sgd_momentum_step);
    USE_REAL(adam_step);
    /* decoding */
    USE_REAL(transformer_step);
#undef USE
#undef USE_REAL
    return k;
}

extern "C" const Kernels *cuda_kernels(TensorType type)
{
    static const Kernels real = table<TENSOR_REAL>(), bf16 = table<TENSOR_BF16>();
    return type == TENSOR_BF16 ? &bf16 : &real;
}
