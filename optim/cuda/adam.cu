#include "ops/kernels.h"
#include "optim/cuda/step.cuh"

__global__ void adam_step(Real *values, Real *m, Real *v, const Real *gradients,
                          const StepScalars *scalars, int64_t n)
{
    step_elements(scalars, n, [=](int64_t i, const StepScalars &now) {
        adam_element(values, m, v, gradients[i], i, now);
    });
}

extern "C" void adam_step_cuda(Real *p, Real *m, Real *v, const Real *gradients,
                               const StepScalars *scalars, int64_t n)
{
    LAUNCH(adam_step, blocks_for(n), THREADS, 0, p, m, v, gradients, scalars, n);
}
