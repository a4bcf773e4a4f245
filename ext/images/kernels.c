/* The choice of the kernels of images. */
#include "ext/images/kernels.h"

static const ImageKernels image_plain = { &convolution_plain, &pool_plain, &unfold_plain,
                                          &batchnorm_plain };
#ifdef TAPEGRAD_CPU
static const ImageKernels image_cpu = { &convolution_cpu, &pool_cpu, &unfold_cpu, &batchnorm_cpu };
static const ImageKernels image_cpu_bf16 = { &convolution_cpu_bf16, &pool_cpu_bf16,
                                             &unfold_cpu_bf16, &batchnorm_cpu_bf16 };
#endif
#ifdef TAPEGRAD_CUDA
static const ImageKernels image_cuda = { &convolution_cuda, &pool_cuda, &unfold_cuda,
                                         &batchnorm_cuda };
static const ImageKernels image_cuda_bf16 = { &convolution_cuda_bf16, &pool_cuda_bf16,
                                              &unfold_cuda_bf16, &batchnorm_cuda_bf16 };
#endif

const ImageKernels *image_kernels(const Tensor *x)
{
    static const ImageKernels *const tables[KERNEL_TABLES] = {
        [KERNELS_PLAIN] = &image_plain,
#ifdef TAPEGRAD_CPU
        [KERNELS_CPU] = &image_cpu,     [KERNELS_CPU_BF16] = &image_cpu_bf16,
#endif
#ifdef TAPEGRAD_CUDA
        [KERNELS_CUDA] = &image_cuda,   [KERNELS_CUDA_BF16] = &image_cuda_bf16,
#endif
    };
    return KERNELS_FOR(tables, x->device, x->type);
}
