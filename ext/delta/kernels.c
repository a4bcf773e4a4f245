/* The choice of the delta rule's kernels. */
#include "ext/delta/kernels.h"

const DeltaKernels *delta_kernels(const Tensor *tensor)
{
    static const DeltaKernels *const tables[KERNEL_TABLES] = {
        [KERNELS_PLAIN] = &delta_plain,
#ifdef TAPEGRAD_CPU
        [KERNELS_CPU] = &delta_cpu,     [KERNELS_CPU_BF16] = &delta_cpu_bf16,
#endif
#ifdef TAPEGRAD_CUDA
        [KERNELS_CUDA] = &delta_cuda,   [KERNELS_CUDA_BF16] = &delta_cuda_bf16,
#endif
    };
    return KERNELS_FOR(tables, tensor->device, tensor->type);
}
