#include "optim/step.cuh"

__global__ void sgd_step(Real *values, const Real *gradients, const StepScalars *scalars,
                         Real weight_decay, int64_t n)
{
    const StepScalars all = *scalars;
    GRID_FOR(i, n) {
        const StepScalars now = scalars_of(all, i);
        const Real p = values[i];
        store_weight(values, now, i, p - now.step * (gradients[i] + weight_decay * now.decay * p));
    }
}

__global__ void sgd_momentum_step(Real *values, Real *m, const Real *gradients,
                                  const StepScalars *scalars, Real weight_decay, Real momentum,
                                  int64_t n)
{
    const StepScalars all = *scalars;
    GRID_FOR(i, n) {
        const StepScalars now = scalars_of(all, i);
        const Real p = values[i];
        const Real sum = momentum * m[i] + gradients[i] + weight_decay * now.decay * p;
        m[i] = sum;
        store_weight(values, now, i, p - now.step * sum);
    }
}

extern "C" void sgd_step_cuda(Real *values, const Real *gradients, const StepScalars *scalars,
                              Real weight_decay, int64_t n)
{
    LAUNCH(sgd_step, blocks_for(n), THREADS, 0, values, gradients, scalars, weight_decay, n);
}

extern "C" void sgd_momentum_step_cuda(Real *values, Real *m, const Real *gradients,
                                       const StepScalars *scalars, Real weight_decay, Real momentum,
                                       int64_t n)
{
    LAUNCH(sgd_momentum_step, blocks_for(n), THREADS, 0, values, m, gradients, scalars,
           weight_decay, momentum, n);
}
