/* Rectified Adam (Liu et al. 2019, algorithm 2), with m, v, m_hat and AdamW's decay as in adam.c.
 * In the first steps v_hat averages few gradients, so 1 / sqrt(v_hat) has a large variance. The
 * number of gradients that it effectively averages, rho_t, grows from 1 to rho_inf:
 *   rho_inf = 2 / (1 - beta2) - 1            rho_t = rho_inf - 2 t beta2^t / (1 - beta2^t)
 * While rho_t <= 5 the step uses momentum alone, p = p - lr m_hat. Afterwards it is Adam's step
 * times r, which rectifies the variance to its limit. The paper's bound is 4; the authors' program
 * rectifies from 5 on, and by default makes no step before:
 *   r = sqrt((rho_t - 4) (rho_t - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho_t))
 *   p = p - lr r m_hat sqrt(1 - beta2^t) / (sqrt(v) + eps)
 * So Adam's kernel gets r sqrt(1 - beta2^t) as part of m_scale, and the divisor sqrt(v) + eps;
 * before, 0 sqrt(v) + 1. */
#include "optim/internal.h"

static StepScalars radam_scalars(const Optimizer *o, int role, double learning_rate,
                                 double decay_factor)
{
    const double beta2 = (double)o->beta2, t = (double)o->steps, power = pow(beta2, t);
    const double rho_inf = 2 / (1 - beta2) - 1;
    const double rho = rho_inf - 2 * t * power / (1 - power);
    const bool rectified = rho > 5;
    StepScalars scalars = optim_adamw_scalars(o, role, learning_rate, decay_factor);
    if (rectified) {
        const double r =
            sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho));
        const double m_scale = 1 / (1 - pow((double)o->beta1, t));
        scalars.m_scale = (Real)(m_scale * r * sqrt(1 - power));
    }
    scalars.v_scale = rectified ? 1 : 0;
    scalars.eps = rectified ? o->eps : 1;
    return scalars;
}

Optimizer *optim_radam(Params *params, AdamConfig config)
{
    static const OptimizerKind radam = { "radam", .states = { ADAM_STATES },
                                         .scalars = radam_scalars, .update = optim_adam_update };
    return optim_new("optim_radam", optim_adam_template("optim_radam", &radam, params, config));
}
