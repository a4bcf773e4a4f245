/* The choice of gated linear attention's kernels. */
#include "ext/gated_linear_attention/kernels.h"

const GatedLinearKernels *gated_linear_kernels(const Tensor *tensor)
{
    static const GatedLinearKernels *const tables[KERNEL_TABLES] = {
        [KERNELS_PLAIN] = &gated_linear_plain,
#ifdef TAPEGRAD_CPU
        [KERNELS_CPU] = &gated_linear_cpu,     [KERNELS_CPU_BF16] = &gated_linear_cpu_bf16,
#endif
#ifdef TAPEGRAD_CUDA
        [KERNELS_CUDA] = &gated_linear_cuda,   [KERNELS_CUDA_BF16] = &gated_linear_cuda_bf16,
#endif
    };
    return KERNELS_FOR(tables, tensor->device, tensor->type);
}
