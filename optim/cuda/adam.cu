#include "ops/kernels.h"
#include "optim/cuda/step.cuh"

__global__ void adam_step(Real *values, Real *m, Real *v, const Real *gradients,
                          const StepScalars *scalars, int64_t n)
{
    step_elements(scalars, n, [=](int64_t i, const StepScalars &now) {
        const Real p = values[i], g = gradients[i] + now.weight_decay * p;
        const Real mean = now.beta1 * m[i] + (1 - now.beta1) * g;
        const Real square = now.beta2 * v[i] + (1 - now.beta2) * g * g;
        m[i] = mean;
        v[i] = square;
        const Real m_hat = now.m_scale * mean, divisor = now.v_scale * sqrt(square) + now.eps;
        store_weight(values, now, i, now.keep * p - now.learning_rate * m_hat / divisor);
    });
}

extern "C" void adam_step_cuda(Real *p, Real *m, Real *v, const Real *gradients,
                               const StepScalars *scalars, int64_t n)
{
    LAUNCH(adam_step, blocks_for(n), THREADS, 0, p, m, v, gradients, scalars, n);
}
