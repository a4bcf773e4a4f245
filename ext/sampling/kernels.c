/* The choice of sampling's kernels. All elements are Real, whatever the logits are. */
#include "ext/sampling/kernels.h"

const SamplingKernels *sampling_kernels(const Tensor *tensor)
{
    static const SamplingKernels *const tables[KERNEL_TABLES] = {
        [KERNELS_PLAIN] = &sampling_plain,
#ifdef TAPEGRAD_CUDA
        [KERNELS_CUDA] = &sampling_cuda,
#endif
    };
    return KERNELS_FOR(tables, tensor->device, tensor->type);
}
