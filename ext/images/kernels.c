/* The choice of the kernels of images. */
#include "ext/images/kernels.h"

const ConvolutionKernels *convolution_kernels(const Tensor *x)
{
    static const ConvolutionKernels *const tables[KERNEL_TABLES] = {
        [KERNELS_PLAIN] = &convolution_plain,
#ifdef TAPEGRAD_CPU
        [KERNELS_CPU] = &convolution_cpu,     [KERNELS_CPU_BF16] = &convolution_cpu_bf16,
#endif
#ifdef TAPEGRAD_CUDA
        [KERNELS_CUDA] = &convolution_cuda,   [KERNELS_CUDA_BF16] = &convolution_cuda_bf16,
#endif
    };
    return KERNELS_FOR(tables, x->device, x->type);
}

const PoolKernels *pool_kernels(const Tensor *x)
{
    static const PoolKernels *const tables[KERNEL_TABLES] = {
        [KERNELS_PLAIN] = &pool_plain,
#ifdef TAPEGRAD_CPU
        [KERNELS_CPU] = &pool_cpu,     [KERNELS_CPU_BF16] = &pool_cpu_bf16,
#endif
#ifdef TAPEGRAD_CUDA
        [KERNELS_CUDA] = &pool_cuda,   [KERNELS_CUDA_BF16] = &pool_cuda_bf16,
#endif
    };
    return KERNELS_FOR(tables, x->device, x->type);
}

const UnfoldKernels *unfold_kernels(const Tensor *x)
{
    static const UnfoldKernels *const tables[KERNEL_TABLES] = {
        [KERNELS_PLAIN] = &unfold_plain,
#ifdef TAPEGRAD_CPU
        [KERNELS_CPU] = &unfold_cpu,     [KERNELS_CPU_BF16] = &unfold_cpu_bf16,
#endif
#ifdef TAPEGRAD_CUDA
        [KERNELS_CUDA] = &unfold_cuda,   [KERNELS_CUDA_BF16] = &unfold_cuda_bf16,
#endif
    };
    return KERNELS_FOR(tables, x->device, x->type);
}

const BatchNormKernels *batchnorm_kernels(const Tensor *x)
{
    static const BatchNormKernels *const tables[KERNEL_TABLES] = {
        [KERNELS_PLAIN] = &batchnorm_plain,
#ifdef TAPEGRAD_CPU
        [KERNELS_CPU] = &batchnorm_cpu,     [KERNELS_CPU_BF16] = &batchnorm_cpu_bf16,
#endif
#ifdef TAPEGRAD_CUDA
        [KERNELS_CUDA] = &batchnorm_cuda,   [KERNELS_CUDA_BF16] = &batchnorm_cuda_bf16,
#endif
    };
    return KERNELS_FOR(tables, x->device, x->type);
}
