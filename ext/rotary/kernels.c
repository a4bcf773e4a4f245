/* The choice of op_rotary's kernels: the CPU's are the plain ones, by blocks in bf16. */
#include "ext/rotary/kernels.h"

const RotaryKernels *rotary_kernels(const Tensor *x)
{
    static const RotaryKernels *const tables[KERNEL_TABLES] = {
        [KERNELS_PLAIN] = &rotary_plain,
#ifdef TAPEGRAD_CPU
        [KERNELS_CPU_BF16] = &rotary_cpu_bf16,
#endif
#ifdef TAPEGRAD_CUDA
        [KERNELS_CUDA] = &rotary_cuda,
        [KERNELS_CUDA_BF16] = &rotary_cuda_bf16,
#endif
    };
    return KERNELS_FOR(tables, x->device, x->type);
}
