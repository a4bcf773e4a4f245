/* The choice of op_causal_convolution's kernels. */
#include "ext/causal_convolution/kernels.h"

const CausalConvolutionKernels *causal_convolution_kernels(const Tensor *x)
{
    static const CausalConvolutionKernels *const tables[KERNEL_TABLES] = {
        [KERNELS_PLAIN] = &causal_convolution_plain,
#ifdef TAPEGRAD_CPU
        [KERNELS_CPU] = &causal_convolution_cpu,
        [KERNELS_CPU_BF16] = &causal_convolution_cpu_bf16,
#endif
#ifdef TAPEGRAD_CUDA
        [KERNELS_CUDA] = &causal_convolution_cuda,
        [KERNELS_CUDA_BF16] = &causal_convolution_cuda_bf16,
#endif
    };
    return KERNELS_FOR(tables, x->device, x->type);
}
