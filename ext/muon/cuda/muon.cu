#include "ext/muon/kernels.h"
#include "optim/cuda/step.cuh"

__global__ void muon_momentum(Real *u, const Real *m, const Real *gradients, Real momentum,
                              Real nesterov, int64_t n)
{
    GRID_FOR(i, n)
        u[i] = muon_direction(m[i], gradients[i], momentum, nesterov);
}

static void muon_momentum_cuda(Real *u, const Real *m, const Real *gradients, Real momentum,
                               Real nesterov, int64_t n)
{
    LAUNCH(muon_momentum, blocks_for(n), THREADS, 0, u, m, gradients, momentum, nesterov, n);
}

__global__ void muon_normalize(Real *x, const Clipping *squares, int64_t n)
{
    double sum = 0;
    for (unsigned part = threadIdx.x; part < CLIP_PARTS; part += blockDim.x)
        sum += squares->parts[part];
    const Real factor = (Real)(1 / fmax(sqrt(block_sum(sum)), MUON_MIN_NORM));
    GRID_FOR(i, n)
        x[i] *= factor;
}

static void muon_normalize_cuda(Real *x, const Clipping *squares, int64_t n)
{
    LAUNCH(muon_normalize, blocks_for(n), THREADS, 0, x, squares, n);
}

__global__ void muon_polynomial(Real *p, const Real *gram, Real scale, int64_t n)
{
    GRID_FOR(i, n * n)
        p[i] = muon_coefficients(gram[i], p[i], i / n == i % n, scale);
}

static void muon_polynomial_cuda(Real *p, const Real *gram, Real scale, int64_t n)
{
    LAUNCH(muon_polynomial, blocks_for(n * n), THREADS, 0, p, gram, scale, n);
}

__global__ void muon_step(Real *values, Real *m, Real *v, const Real *gradients,
                          const StepScalars *scalars, int64_t n)
{
    step_elements(scalars, n, [=](int64_t i, const StepScalars &now) {
        if (now.own != MUON_MATRIX) {
            adam_element(values, m, v, gradients[i], i, now);
            return;
        }
        m[i] = now.momentum * m[i] + (1 - now.momentum) * gradients[i];
        store_weight(values, now, i, now.keep * values[i] - now.learning_rate * v[i]);
    });
}

static void muon_step_cuda(Real *p, Real *m, Real *v, const Real *gradients,
                           const StepScalars *scalars, int64_t n)
{
    LAUNCH(muon_step, blocks_for(n), THREADS, 0, p, m, v, gradients, scalars, n);
}

const MuonKernels muon_cuda = { muon_momentum_cuda, muon_normalize_cuda, muon_polynomial_cuda,
                                muon_step_cuda };
