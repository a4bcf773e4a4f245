/* Adam (Kingma and Ba 2015, algorithm 1), in step t = 1, 2, ...:
 *   m = beta1 m + (1 - beta1) g              v = beta2 v + (1 - beta2) g^2
 *   m_hat = m / (1 - beta1^t)                v_hat = v / (1 - beta2^t)
 *   p = p - lr m_hat / (sqrt(v_hat) + eps)
 * m and v start at 0, so after t steps the coefficients of the gradients in m sum to 1 - beta1^t;
 * m_hat and v_hat correct this bias. With
 *   step = lr / (1 - beta1^t)                scale = 1 / sqrt(1 - beta2^t)
 * the last line is p = p - step m / (scale sqrt(v) + eps). Weight decay is applied first:
 *   Adam    g = g + decay p                  decay = weight_decay
 *   AdamW   p = keep p                       keep = 1 - lr weight_decay
 * One kernel serves both: Adam has keep = 1, AdamW decay = 0. */
#include "optim/internal.h"

#include <float.h>
#include <tgmath.h> /* sqrt of a Real is computed in Real */

static void adam_run(Real *values, Real *m, Real *v, const Real *gradients,
                     const StepScalars *scalars, Real weight_decay, Real beta1, Real beta2,
                     Real eps, int64_t n)
{
    const Real keep = scalars->keep, step = scalars->step, scale = scalars->scale;
    const Real decay = weight_decay * scalars->decay;
    PARALLEL_FOR(i, n) {
        const Real g = gradients[i] + decay * values[i];
        m[i] = beta1 * m[i] + (1 - beta1) * g;
        v[i] = beta2 * v[i] + (1 - beta2) * g * g;
        values[i] = keep * values[i] - step * m[i] / (scale * sqrt(v[i]) + eps);
    }
}

void adam_step_cpu(Real *values, Real *m, Real *v, const Real *gradients,
                   const StepScalars *scalars, Real decay, Real beta1, Real beta2, Real eps,
                   int64_t n)
{
    for (Run run = { 0 }; next_run(&run, scalars, n);)
        adam_run(values + run.start, m + run.start, v + run.start, gradients + run.start,
                 run.scalars, decay, beta1, beta2, eps, run.count);
}

static StepScalars adam_scalars(const Optimizer *optimizer, int64_t t, double learning_rate)
{
    const double step = learning_rate / (1 - pow((double)optimizer->beta1, (double)t));
    const double scale = 1 / sqrt(1 - pow((double)optimizer->beta2, (double)t));
    return (StepScalars){ .keep = 1, .step = (Real)step, .scale = (Real)scale };
}

static StepScalars adamw_scalars(const Optimizer *optimizer, int64_t t, double learning_rate)
{
    StepScalars scalars = adam_scalars(optimizer, t, learning_rate);
    scalars.keep = (Real)(1 - learning_rate * optimizer->weight_decay);
    return scalars;
}

static void update(const Optimizer *optimizer, Real decay, Real *values, const Real *gradients)
{
    DEVICE_CALL(optimizer->device, adam_step,
                (values, optimizer->m, optimizer->v, gradients, optimizer->current, decay,
                 optimizer->beta1, optimizer->beta2, optimizer->eps,
                 params_flat_count(optimizer->params)));
}

static void adam_update(const Optimizer *optimizer, Real *values, const Real *gradients)
{
    update(optimizer, (Real)optimizer->weight_decay, values, gradients);
}

static void adamw_update(const Optimizer *optimizer, Real *values, const Real *gradients)
{
    update(optimizer, 0, values, gradients);
}

AdamConfig optim_adam_config(double learning_rate)
{
    return (
        AdamConfig){ .learning_rate = learning_rate, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8 };
}

/* For eps = 0 the least normal number: added to any sqrt(v) > 0 it changes no bit, and m / eps is 0
 * where m and v are 0, as in the padding. */
static Real kernel_eps(double eps)
{
    const double least = sizeof(Real) == sizeof(double) ? DBL_MIN : (double)FLT_MIN;
    return (Real)(eps >= 0 && eps < least ? least : eps);
}

Optimizer *optimizer_with_means(const char *function, Params *params, AdamConfig config,
                                Optimizer template)
{
    if (config.beta2 == 0 && config.eps == 0)
        error_raise("%s: beta2 and eps are both 0, which divides each gradient by its own size; "
                    "start from optim_adam_config",
                    function);
    template.params = params;
    template.state_count = 2;
    template.learning_rate = config.learning_rate;
    template.beta1 = (Real)config.beta1;
    template.beta2 = (Real)config.beta2;
    template.eps = kernel_eps(config.eps);
    template.weight_decay = config.weight_decay;
    template.schedule = config.schedule;
    return optimizer_new(function, template);
}

Optimizer *optim_adam(Params *params, AdamConfig config)
{
    return optimizer_with_means(
        "optim_adam", params, config,
        (Optimizer){ .kind = "adam", .scalars = adam_scalars, .update = adam_update });
}

Optimizer *optim_adamw(Params *params, AdamConfig config)
{
    return optimizer_with_means(
        "optim_adamw", params, config,
        (Optimizer){ .kind = "adamw", .scalars = adamw_scalars, .update = adamw_update });
}
