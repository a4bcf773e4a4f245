/* The choice of CTC's kernels. All elements are Real, whatever the logits are. */
#include "ext/ctc/kernels.h"

const CtcKernels *ctc_kernels(const Tensor *tensor)
{
    static const CtcKernels *const tables[KERNEL_TABLES] = {
        [KERNELS_PLAIN] = &ctc_plain,
#ifdef TAPEGRAD_CUDA
        [KERNELS_CUDA] = &ctc_cuda,
#endif
    };
    return KERNELS_FOR(tables, tensor->device, tensor->type);
}
