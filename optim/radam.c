/* Rectified Adam (Liu et al. 2019, algorithm 2), in step t = 1, 2, ...:
 *   p = keep p                               keep = 1 - lr weight_decay
 *   m = beta1 m + (1 - beta1) g              v = beta2 v + (1 - beta2) g^2
 *   m_hat = m / (1 - beta1^t)                v_hat = v / (1 - beta2^t)
 * In the first steps v_hat averages few gradients, so 1 / sqrt(v_hat) has a large variance. The
 * number of gradients that it effectively averages, rho_t, grows from 1 to rho_inf:
 *   rho_inf = 2 / (1 - beta2) - 1            rho_t = rho_inf - 2 t beta2^t / (1 - beta2^t)
 * While rho_t <= 5 (as in the authors' program; the paper says 4) the step uses momentum alone,
 * p = p - lr m_hat. Afterwards it is Adam's step times r, which rectifies the variance to its
 * limit:
 *   r = sqrt((rho_t - 4) (rho_t - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho_t))
 *   p = p - lr r m_hat sqrt(1 - beta2^t) / (sqrt(v) + eps)
 * The kernel gets all factors of that line in one scalar, step; rectified means rho_t > 5. */
#include "optim/internal.h"

#include <tgmath.h> /* sqrt of a Real is computed in Real */

/* Two loops, because a loop without a branch vectorizes. */
static void radam_run(Real *values, Real *m, Real *v, const Real *gradients,
                      const StepScalars *scalars, Real beta1, Real beta2, Real eps, int64_t n)
{
    const Real keep = scalars->keep, step = scalars->step;
    if (scalars->rectified) {
        PARALLEL_FOR(i, n) {
            const Real g = gradients[i];
            m[i] = beta1 * m[i] + (1 - beta1) * g;
            v[i] = beta2 * v[i] + (1 - beta2) * g * g;
            values[i] = keep * values[i] - step * m[i] / (sqrt(v[i]) + eps);
        }
    } else {
        PARALLEL_FOR(i, n) {
            const Real g = gradients[i];
            m[i] = beta1 * m[i] + (1 - beta1) * g;
            v[i] = beta2 * v[i] + (1 - beta2) * g * g;
            values[i] = keep * values[i] - step * m[i];
        }
    }
}

void radam_step_cpu(Real *values, Real *m, Real *v, const Real *gradients,
                    const StepScalars *scalars, Real beta1, Real beta2, Real eps, int64_t n)
{
    for (Run run = { 0 }; next_run(&run, scalars, n);)
        radam_run(values + run.start, m + run.start, v + run.start, gradients + run.start,
                  run.scalars, beta1, beta2, eps, run.count);
}

static StepScalars radam_scalars(const Optimizer *optimizer, int64_t t, double learning_rate)
{
    const double beta1 = (double)optimizer->beta1, beta2 = (double)optimizer->beta2;
    const double keep = 1 - learning_rate * optimizer->weight_decay;
    const double power = pow(beta2, (double)t);
    const double limit = 2 / (1 - beta2) - 1;
    const double rho = limit - 2 * (double)t * power / (1 - power);
    const bool rectified = rho > 5;
    double step = learning_rate / (1 - pow(beta1, (double)t));
    if (rectified) {
        step *= sqrt((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho));
        step *= sqrt(1 - power);
    }
    return (StepScalars){ .keep = (Real)keep, .step = (Real)step, .rectified = rectified };
}

static void radam_update(const Optimizer *optimizer, Real *values, const Real *gradients)
{
    DEVICE_CALL(optimizer->device, radam_step,
                (values, optimizer->m, optimizer->v, gradients, optimizer->current,
                 optimizer->beta1, optimizer->beta2, optimizer->eps,
                 params_flat_count(optimizer->params)));
}

Optimizer *optim_radam(Params *params, AdamConfig config)
{
    return optimizer_with_means(
        "optim_radam", params, config,
        (Optimizer){ .kind = "radam", .scalars = radam_scalars, .update = radam_update });
}
