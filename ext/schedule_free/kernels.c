/* The choice of schedule-free AdamW's kernels: the CPU's are the plain ones. */
#include "ext/schedule_free/kernels.h"

const ScheduleFreeKernels *schedule_free_kernels(Device *device)
{
    static const ScheduleFreeKernels *const tables[KERNEL_TABLES] = {
        [KERNELS_PLAIN] = &schedule_free_plain,
#ifdef TAPEGRAD_CUDA
        [KERNELS_CUDA] = &schedule_free_cuda,
#endif
    };
    return KERNELS_FOR(tables, device, TENSOR_REAL);
}
