#include "ops/kernels.h"
#include "optim/cuda/step.cuh"

__global__ void sgd_step(Real *values, Real *m, const Real *gradients, const StepScalars *scalars,
                         int64_t n)
{
    step_elements(scalars, n, [=](int64_t i, const StepScalars &now) {
        const Real p = values[i], g = gradients[i] + now.weight_decay * p;
        const Real sum = m ? now.momentum * m[i] + g : g;
        if (m)
            m[i] = sum;
        const Real direction = now.own > 0 ? g + now.momentum * sum : sum;
        store_weight(values, now, i, p - now.learning_rate * direction);
    });
}

extern "C" void sgd_step_cuda(Real *p, Real *m, const Real *gradients, const StepScalars *scalars,
                              int64_t n)
{
    LAUNCH(sgd_step, blocks_for(n), THREADS, 0, p, m, gradients, scalars, n);
}
