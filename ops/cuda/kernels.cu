/* The CUDA backend's kernels: all of ops/kernel_list.h, since plain ones cannot read GPU memory. */
#include "ops/kernels.h"
#include "tensor/cuda/kernel.cuh"

template <TensorType type>
static const Kernels table = {
#define KERNEL(name, parameters) call<name##_cuda, type>,
#define REAL_KERNEL(name, parameters) name##_cuda,
#define FUSED_KERNEL KERNEL
#define BACKEND_KERNEL REAL_KERNEL
#include "ops/kernel_list.h"
};

extern "C" const Kernels *cuda_kernels(TensorType type)
{
    return type == TENSOR_BF16 ? &table<TENSOR_BF16> : &table<TENSOR_REAL>;
}
