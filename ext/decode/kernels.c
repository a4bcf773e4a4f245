/* The choice of an engine. */
#include "ext/decode/kernels.h"

const DecodeKernels *decode_kernels(Device *device)
{
    static const DecodeKernels none = { .step = NULL };
    static const DecodeKernels *const tables[KERNEL_TABLES] = {
        [KERNELS_PLAIN] = &none,
#ifdef TAPEGRAD_CPU
        [KERNELS_CPU] = &decode_cpu,
#endif
#ifdef TAPEGRAD_CUDA
        [KERNELS_CUDA] = &decode_cuda,
#endif
    };
    return KERNELS_FOR(tables, device, TENSOR_REAL);
}
