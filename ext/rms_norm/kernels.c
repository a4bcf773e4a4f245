/* The choice of the kernels of op_rms_norm and op_l2_normalize. */
#include "ext/rms_norm/kernels.h"

const RmsNormKernels *rms_norm_kernels(const Tensor *x)
{
    static const RmsNormKernels *const tables[KERNEL_TABLES] = {
        [KERNELS_PLAIN] = &rms_norm_plain,
#ifdef TAPEGRAD_CPU
        [KERNELS_CPU] = &rms_norm_cpu,     [KERNELS_CPU_BF16] = &rms_norm_cpu_bf16,
#endif
#ifdef TAPEGRAD_CUDA
        [KERNELS_CUDA] = &rms_norm_cuda,   [KERNELS_CUDA_BF16] = &rms_norm_cuda_bf16,
#endif
    };
    return KERNELS_FOR(tables, x->device, x->type);
}
