#include "optim/step.cuh"

__global__ void adam_step(Real *values, Real *m, Real *v, const Real *gradients,
                          const StepScalars *scalars, Real decay, Real beta1, Real beta2, Real eps,
                          int64_t n)
{
    const StepScalars all = *scalars;
    GRID_FOR(i, n) {
        const StepScalars now = scalars_of(all, i);
        const Real p = values[i], g = gradients[i] + decay * now.decay * p;
        const Real mean = beta1 * m[i] + (1 - beta1) * g;
        const Real square = beta2 * v[i] + (1 - beta2) * g * g;
        m[i] = mean;
        v[i] = square;
        store_weight(values, now, i,
                     now.keep * p - now.step * mean / (now.scale * sqrt(square) + eps));
    }
}

extern "C" void adam_step_cuda(Real *values, Real *m, Real *v, const Real *gradients,
                               const StepScalars *scalars, Real decay, Real beta1, Real beta2,
                               Real eps, int64_t n)
{
    LAUNCH(adam_step, blocks_for(n), THREADS, 0, values, m, v, gradients, scalars, decay, beta1,
           beta2, eps, n);
}
