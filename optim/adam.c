/* Adam (Kingma and Ba 2015, algorithm 1), in step t = 1, 2, ... of weights p with the gradient g
 * and the learning rate lr:
 *   m = beta1 m + (1 - beta1) g              v = beta2 v + (1 - beta2) g^2
 *   m_hat = m / (1 - beta1^t)                v_hat = v / (1 - beta2^t)
 *   p = p - lr m_hat / (sqrt(v_hat) + eps)
 * m and v start at 0, so after t steps the coefficients of the gradients in m sum to 1 - beta1^t;
 * m_hat and v_hat correct this bias. The kernel gets
 *   m_scale = 1 / (1 - beta1^t)              v_scale = 1 / sqrt(1 - beta2^t)
 * Weight decay comes first:
 *   Adam    g = g + weight_decay p
 *   AdamW   p = keep p                       keep = 1 - lr weight_decay
 * One kernel serves both, and RAdam: Adam has keep = 1, the others weight_decay = 0. */
#include "ops/kernels.h"
#include "ops/shared/math.h"
#include "optim/internal.h"

#include <float.h>
#include <math.h>

void optim_adam_run(Real *p, Real *m, Real *v, const Real *gradients, const Run *run)
{
    const StepScalars s = *run->scalars;
    EACH(k, run->count) {
        const int64_t i = run->start + k;
        const Real g = gradients[i] + s.weight_decay * p[i];
        m[i] = s.beta1 * m[i] + (1 - s.beta1) * g;
        v[i] = s.beta2 * v[i] + (1 - s.beta2) * g * g;
        const Real m_hat = s.m_scale * m[i], sqrt_v_hat = s.v_scale * real_sqrt(v[i]);
        p[i] = s.keep * p[i] - s.learning_rate * m_hat / (sqrt_v_hat + s.eps);
    }
}

void adam_step_plain(Real *p, Real *m, Real *v, const Real *gradients, const StepScalars *scalars,
                     int64_t n)
{
    for (Run run = { 0 }; next_run(&run, scalars, n);)
        optim_adam_run(p, m, v, gradients, &run);
}

void optim_adam_update(const Optimizer *o, Real *p, const Real *gradients)
{
    op_kernels_on(o->device, TENSOR_REAL)
        ->adam_step(p, o->states[0], o->states[1], gradients, o->scalars, o->range.count);
}

static StepScalars common_scalars(const Optimizer *o, double learning_rate)
{
    const double t = (double)o->steps;
    return (StepScalars){
        .learning_rate = (Real)learning_rate,
        .keep = 1,
        .beta1 = o->beta1,
        .beta2 = o->beta2,
        .m_scale = (Real)(1 / (1 - pow((double)o->beta1, t))),
        .v_scale = (Real)(1 / sqrt(1 - pow((double)o->beta2, t))),
        .eps = o->eps,
    };
}

static StepScalars adam_scalars(const Optimizer *o, int role, double learning_rate,
                                double decay_factor)
{
    (void)role;
    StepScalars scalars = common_scalars(o, learning_rate);
    scalars.weight_decay = (Real)(o->weight_decay * decay_factor);
    return scalars;
}

StepScalars optim_adamw_scalars_of(const Optimizer *o, double learning_rate, double weight_decay)
{
    StepScalars scalars = common_scalars(o, learning_rate);
    scalars.keep = (Real)(1 - learning_rate * weight_decay);
    return scalars;
}

StepScalars optim_adamw_scalars(const Optimizer *o, int role, double learning_rate,
                                double decay_factor)
{
    (void)role;
    return optim_adamw_scalars_of(o, learning_rate, o->weight_decay * decay_factor);
}

AdamConfig optim_adam_config(double learning_rate)
{
    return (
        AdamConfig){ .learning_rate = learning_rate, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8 };
}

/* At least the root of the smallest normal number, below which g^2 underflows: where v is 0 but m
 * is not, |m| is smaller than this, and so the step smaller than lr. m / eps is 0 where both are 0,
 * as in the padding. */
static Real kernel_eps(double eps)
{
    const double min = sqrt(sizeof(Real) == sizeof(double) ? DBL_MIN : (double)FLT_MIN);
    return (Real)(eps >= 0 && eps < min ? min : eps);
}

Optimizer optim_adam_template(const char *function, const OptimizerKind *kind, Params *params,
                              AdamConfig config)
{
    if (config.beta2 == 0 && config.eps == 0)
        error_raise("%s: beta2 and eps are both 0, which divides each gradient by its own size; "
                    "start from optim_adam_config",
                    function);
    return (Optimizer){ .kind = kind,
                        .params = params,
                        .state_count = 2,
                        .learning_rate = config.learning_rate,
                        .beta1 = (Real)config.beta1,
                        .beta2 = (Real)config.beta2,
                        .eps = kernel_eps(config.eps),
                        .weight_decay = config.weight_decay,
                        .schedule = config.schedule };
}

Optimizer *optim_adam(Params *params, AdamConfig config)
{
    static const OptimizerKind adam = { "adam", .states = { ADAM_STATES }, .scalars = adam_scalars,
                                        .update = optim_adam_update };
    return optim_new("optim_adam", optim_adam_template("optim_adam", &adam, params, config));
}

Optimizer *optim_adamw(Params *params, AdamConfig config)
{
    static const OptimizerKind adamw = { "adamw", .states = { ADAM_STATES },
                                         .scalars = optim_adamw_scalars,
                                         .update = optim_adam_update };
    return optim_new("optim_adamw", optim_adam_template("optim_adamw", &adamw, params, config));
}
