#include "optim/cuda/step.cuh"

__global__ void adam_step(Real *values, Real *m, Real *v, const Real *gradients,
                          const StepScalars *scalars, Real beta1, Real beta2, int64_t n)
{
    step_elements(scalars, n, [=](int64_t i, const StepScalars &now) {
        const Real p = values[i], g = gradients[i] + now.weight_decay * p;
        const Real mean = beta1 * m[i] + (1 - beta1) * g;
        const Real square = beta2 * v[i] + (1 - beta2) * g * g;
        m[i] = mean;
        v[i] = square;
        const Real divisor = now.v_scale * sqrt(square) + now.eps;
        store_weight(values, now, i, now.keep * p - now.learning_rate * mean / divisor);
    });
}

extern "C" void adam_step_cuda(Real *values, Real *m, Real *v, const Real *gradients,
                               const StepScalars *scalars, Real beta1, Real beta2, int64_t n)
{
    LAUNCH(adam_step, blocks_for(n), THREADS, 0, values, m, v, gradients, scalars, beta1, beta2, n);
}
