/* The choice of LSH attention's kernels. */
#include "ext/lsh/kernels.h"

const LshKernels *lsh_kernels(const Tensor *tensor)
{
    static const LshKernels *const tables[KERNEL_TABLES] = {
        [KERNELS_PLAIN] = &lsh_plain,
#ifdef TAPEGRAD_CPU
        [KERNELS_CPU] = &lsh_cpu,     [KERNELS_CPU_BF16] = &lsh_cpu_bf16,
#endif
#ifdef TAPEGRAD_CUDA
        [KERNELS_CUDA] = &lsh_cuda,   [KERNELS_CUDA_BF16] = &lsh_cuda_bf16,
#endif
    };
    return KERNELS_FOR(tables, tensor->device, tensor->type);
}
