/* The steps of the CPU backend: the plain ones, which then update the bf16 copy of the weights. */
#include "ops/kernels.h"
#include "optim/scalars.h"
#include "tensor/internal.h"

static void update_copy(const StepScalars *scalars, const Real *p, int64_t n)
{
    uint16_t *copy = scalars->bf16;
    if (copy)
        EACH(i, n) {
            copy[i] = bf16_of(p[i]);
        }
}

void sgd_step_cpu(Real *p, Real *m, const Real *gradients, const StepScalars *scalars, int64_t n)
{
    sgd_step_plain(p, m, gradients, scalars, n);
    update_copy(scalars, p, n);
}

void adam_step_cpu(Real *p, Real *m, Real *v, const Real *gradients, const StepScalars *scalars,
                   int64_t n)
{
    adam_step_plain(p, m, v, gradients, scalars, n);
    update_copy(scalars, p, n);
}

void muon_step_cpu(Real *p, Real *m, Real *v, const Real *gradients, const StepScalars *scalars,
                   int64_t n)
{
    muon_step_plain(p, m, v, gradients, scalars, n);
    update_copy(scalars, p, n);
}

void schedule_free_step_cpu(Real *p, Real *x, Real *z, Real *v, const Real *gradients,
                            const StepScalars *scalars, int64_t n)
{
    schedule_free_step_plain(p, x, z, v, gradients, scalars, n);
    update_copy(scalars, p, n);
}
