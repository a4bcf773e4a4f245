/* The choice of Muon's kernels: the CPU's are the plain ones. */
#include "ext/muon/kernels.h"

const MuonKernels *muon_kernels(Device *device)
{
    static const MuonKernels *const tables[KERNEL_TABLES] = {
        [KERNELS_PLAIN] = &muon_plain,
#ifdef TAPEGRAD_CUDA
        [KERNELS_CUDA] = &muon_cuda,
#endif
    };
    return KERNELS_FOR(tables, device, TENSOR_REAL);
}
