/* The choice of the mixture's kernels. All elements are Real, whatever the parameters are. */
#include "ext/mixture/kernels.h"

const MixtureKernels *mixture_kernels(const Tensor *tensor)
{
    static const MixtureKernels *const tables[KERNEL_TABLES] = {
        [KERNELS_PLAIN] = &mixture_plain,
#ifdef TAPEGRAD_CUDA
        [KERNELS_CUDA] = &mixture_cuda,
#endif
    };
    return KERNELS_FOR(tables, tensor->device, tensor->type);
}
