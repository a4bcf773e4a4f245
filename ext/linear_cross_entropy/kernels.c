/* The choice of op_linear_cross_entropy's kernels. */
#include "ext/linear_cross_entropy/kernels.h"

const LinearCrossEntropyKernels *linear_cross_entropy_kernels(Device *device, TensorType type)
{
    static const LinearCrossEntropyKernels *const tables[KERNEL_TABLES] = {
        [KERNELS_PLAIN] = &linear_cross_entropy_plain,
#ifdef TAPEGRAD_CPU
        [KERNELS_CPU_BF16] = &linear_cross_entropy_cpu_bf16,
#endif
#ifdef TAPEGRAD_CUDA
        [KERNELS_CUDA] = &linear_cross_entropy_cuda,
        [KERNELS_CUDA_BF16] = &linear_cross_entropy_cuda_bf16,
#endif
    };
    return KERNELS_FOR(tables, device, type);
}
