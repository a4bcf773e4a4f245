/* Schedule-free AdamW's kernels. */
#ifndef TAPEGRAD_SCHEDULE_FREE_KERNELS_H
#define TAPEGRAD_SCHEDULE_FREE_KERNELS_H

#include "extend.h"

typedef struct ScheduleFreeKernels {
    /* scalars->own: c, the weight of z in x */
    void (*step)(Real *p, Real *x, Real *z, Real *v, const Real *gradients,
                 const StepScalars *scalars, int64_t n);
    /* p [n] = z + beta1 (x - z) */
    void (*weights)(Real *p, const Real *x, const Real *z, Real beta1, int64_t n);
} ScheduleFreeKernels;
extern const ScheduleFreeKernels schedule_free_plain, schedule_free_cuda;
C_FUNCTION const ScheduleFreeKernels *schedule_free_kernels(Device *device);

/* y of x and z */
SHARED_FUNCTION Real schedule_free_point(Real x, Real z, Real beta1)
{
    return z + beta1 * (x - z);
}

#endif
