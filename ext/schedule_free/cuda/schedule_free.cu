#include "ext/schedule_free/kernels.h"
#include "optim/cuda/step.cuh"

__global__ void schedule_free_step(Real *values, Real *x, Real *z, Real *v, const Real *gradients,
                                   const StepScalars *scalars, int64_t n)
{
    step_elements(scalars, n, [=](int64_t i, const StepScalars &now) {
        const Real g = gradients[i];
        const Real square = now.beta2 * v[i] + (1 - now.beta2) * g * g;
        const Real divisor = now.v_scale * sqrt(square) + now.eps;
        const Real next = z[i] - now.learning_rate * (g / divisor + now.weight_decay * values[i]);
        const Real mean = x[i] + now.own * (next - x[i]);
        v[i] = square;
        z[i] = next;
        x[i] = mean;
        store_weight(values, now, i, schedule_free_point(mean, next, now.beta1));
    });
}

static void schedule_free_step_cuda(Real *p, Real *x, Real *z, Real *v, const Real *gradients,
                                    const StepScalars *scalars, int64_t n)
{
    LAUNCH(schedule_free_step, blocks_for(n), THREADS, 0, p, x, z, v, gradients, scalars, n);
}

__global__ void schedule_free_weights(Real *p, const Real *x, const Real *z, Real beta1, int64_t n)
{
    GRID_FOR(i, n)
        p[i] = schedule_free_point(x[i], z[i], beta1);
}

static void schedule_free_weights_cuda(Real *p, const Real *x, const Real *z, Real beta1, int64_t n)
{
    LAUNCH(schedule_free_weights, blocks_for(n), THREADS, 0, p, x, z, beta1, n);
}

const ScheduleFreeKernels schedule_free_cuda = { schedule_free_step_cuda,
                                                 schedule_free_weights_cuda };
