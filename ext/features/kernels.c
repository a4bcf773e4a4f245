/* The choice of kernels of features: the CPU's are the plain ones, by blocks in bf16. */
#include "ext/features/kernels.h"

const PolynomialFeatureKernels *polynomial_features_kernels(const Tensor *x)
{
    static const PolynomialFeatureKernels *const tables[KERNEL_TABLES] = {
        [KERNELS_PLAIN] = &polynomial_features_plain,
#ifdef TAPEGRAD_CPU
        [KERNELS_CPU_BF16] = &polynomial_features_cpu_bf16,
#endif
#ifdef TAPEGRAD_CUDA
        [KERNELS_CUDA] = &polynomial_features_cuda,
        [KERNELS_CUDA_BF16] = &polynomial_features_cuda_bf16,
#endif
    };
    return KERNELS_FOR(tables, x->device, x->type);
}

const RandomFeatureKernels *random_features_kernels(const Tensor *x)
{
    static const RandomFeatureKernels *const tables[KERNEL_TABLES] = {
        [KERNELS_PLAIN] = &random_features_plain,
#ifdef TAPEGRAD_CPU
        [KERNELS_CPU_BF16] = &random_features_cpu_bf16,
#endif
#ifdef TAPEGRAD_CUDA
        [KERNELS_CUDA] = &random_features_cuda,
        [KERNELS_CUDA_BF16] = &random_features_cuda_bf16,
#endif
    };
    return KERNELS_FOR(tables, x->device, x->type);
}
