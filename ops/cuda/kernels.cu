/* The CUDA backend's kernels: its table of contents. */
#include "ops/kernels.h"
#include "tensor/cuda/kernel.cuh"

/* A launcher whose first argument, the dtype, is fixed. */
template <auto launcher, TensorType type> struct OfType;
template <typename... P, void (*launcher)(TensorType, P...), TensorType type>
struct OfType<launcher, type> {
    static void call(P... arguments)
    {
        launcher(type, arguments...);
    }
};

template <TensorType type> static Kernels table(void)
{
    Kernels k = {};
#define USE(kernel) k.kernel = OfType<kernel##_cuda, type>::call
#define USE_REAL(kernel) k.kernel = kernel##_cuda
    /* elementwise */
    /* rows */
    USE(softmax_forward);
    USE(softmax_backward);
    /* products */
    USE_REAL(product);
    USE_REAL(linear_forward);
    USE(linear_activate);
    USE(linear_activate_backward);
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
#undef USE
#undef USE_REAL
    return k;
}

extern "C" const Kernels *cuda_kernels(TensorType type)
{
    static const Kernels real = table<TENSOR_REAL>(), bf16 = table<TENSOR_BF16>();
    return type == TENSOR_BF16 ? &bf16 : &real;
}
