/* Rectified Adam (Liu et al. 2019, algorithm 2), with m, v, m_hat and AdamW's decay as in adam.c.
 * In the first steps v_hat averages few gradients, so 1 / sqrt(v_hat) has a large variance. The
 * number of gradients that it effectively averages, rho_t, grows from 1 to rho_inf:
 *   rho_inf = 2 / (1 - beta2) - 1            rho_t = rho_inf - 2 t beta2^t / (1 - beta2^t)
 * While rho_t <= 5 (as in the authors' program; the paper says 4) the step uses momentum alone,
 * p = p - lr m_hat. Afterwards it is Adam's step times r, which rectifies the variance to its
 * limit:
 *   r = sqrt((rho_t - 4) (rho_t - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho_t))
 *   p = p - lr r m_hat sqrt(1 - beta2^t) / (sqrt(v) + eps)
 * So Adam's kernel gets the divisor sqrt(v) + eps, and before 0 sqrt(v) + 1. */
#include "optim/internal.h"

static StepScalars radam_scalars(const Optimizer *optimizer, double learning_rate)
{
    const double beta1 = (double)optimizer->beta1, beta2 = (double)optimizer->beta2;
    const double t = (double)optimizer->steps, power = pow(beta2, t);
    const double limit = 2 / (1 - beta2) - 1;
    const double rho = limit - 2 * t * power / (1 - power);
    const bool rectified = rho > 5;
    double rate = learning_rate / (1 - pow(beta1, t));
    if (rectified) {
        rate *= sqrt((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho));
        rate *= sqrt(1 - power);
    }
    return (StepScalars){
        .learning_rate = (Real)rate,
        .keep = (Real)(1 - learning_rate * optimizer->weight_decay),
        .v_scale = rectified ? 1 : 0,
        .eps = rectified ? optimizer->eps : 1,
    };
}

Optimizer *optim_radam(Params *params, AdamConfig config)
{
    return adam_new("optim_radam", params, config, radam_scalars);
}
