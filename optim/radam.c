/* Rectified Adam (Liu et al. 2019, algorithm 2), in step t = 1, 2, ...:
 *   p = keep p                               keep = 1 - lr weight_decay
 *   m = beta1 m + (1 - beta1) g              v = beta2 v + (1 - beta2) g^2
 *   m_hat = m / (1 - beta1^t)                v_hat = v / (1 - beta2^t)
 * In the first steps v_hat is a mean over few gradients, and dividing by its root a gamble. How many
 * they are, rho_t, grows from 1 to rho_inf:
 *   rho_inf = 2 / (1 - beta2) - 1            rho_t = rho_inf - 2 t beta2^t / (1 - beta2^t)
 * While rho_t <= 5 the step is momentum's alone, p = p - lr m_hat; from then on it is Adam's times r,
 * which undoes the variance that the root has more of than in the limit:
 *   r = sqrt((rho_t - 4) (rho_t - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho_t))
 *   p = p - lr r m_hat sqrt(1 - beta2^t) / (sqrt(v) + eps)
 * In the kernel all scalars of the step's last line are one, step. */
#include "optim/internal.h"

#include <tgmath.h> /* sqrt of a Real is computed in Real */

static void radam_step_cpu(Real *values, Real *m, Real *v, const Real *gradients, Real keep,
                           Real beta1, Real beta2, Real step, Real eps, int64_t n)
{
    PARALLEL_FOR(i, n) {
        const Real g = gradients[i];
        m[i] = beta1 * m[i] + (1 - beta1) * g;
        v[i] = beta2 * v[i] + (1 - beta2) * g * g;
        values[i] = keep * values[i] - step * m[i] / (sqrt(v[i]) + eps);
    }
}

static void radam_first_step_cpu(Real *values, Real *m, Real *v, const Real *gradients, Real keep,
                                 Real beta1, Real beta2, Real step, int64_t n)
{
    PARALLEL_FOR(i, n) {
        const Real g = gradients[i];
        m[i] = beta1 * m[i] + (1 - beta1) * g;
        v[i] = beta2 * v[i] + (1 - beta2) * g * g;
        values[i] = keep * values[i] - step * m[i];
    }
}

static void radam_update(const Optimizer *optimizer, int64_t t, double learning_rate, Real *values,
                         const Real *gradients)
{
    const int64_t n = params_flat_count(optimizer->params);
    const Real beta1 = optimizer->beta1, beta2 = optimizer->beta2;
    const Real keep = (Real)(1 - learning_rate * (double)optimizer->weight_decay);
    const double power = pow((double)beta2, (double)t);
    const double limit = 2 / (1 - (double)beta2) - 1;
    const double rho = limit - 2 * (double)t * power / (1 - power);
    double step = learning_rate / (1 - pow((double)beta1, (double)t));
    if (rho > 5) {
        step *= sqrt((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho));
        step *= sqrt(1 - power);
        DEVICE_CALL(optimizer->device, radam_step,
                    (values, optimizer->m, optimizer->v, gradients, keep, beta1, beta2, (Real)step,
                     optimizer->eps, n));
    } else {
        DEVICE_CALL(
            optimizer->device, radam_first_step,
            (values, optimizer->m, optimizer->v, gradients, keep, beta1, beta2, (Real)step, n));
    }
}

Optimizer *optim_radam(Params *params, RAdamConfig config)
{
    return optimizer_with_means("optim_radam", params, config,
                                (Optimizer){ .kind = "radam", .update = radam_update });
}
