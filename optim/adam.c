/* Adam (Kingma and Ba 2015, algorithm 1), in step t = 1, 2, ...:
 *   m = beta1 m + (1 - beta1) g              v = beta2 v + (1 - beta2) g^2
 *   m_hat = m / (1 - beta1^t)                v_hat = v / (1 - beta2^t)
 *   p = p - lr m_hat / (sqrt(v_hat) + eps)
 * m and v start at 0, so after t steps the coefficients of the gradients in m sum to 1 - beta1^t;
 * m_hat and v_hat correct this bias. With
 *   learning_rate = lr / (1 - beta1^t)       v_scale = 1 / sqrt(1 - beta2^t)
 * the last line is p = p - learning_rate m / (v_scale sqrt(v) + eps). Weight decay comes first:
 *   Adam    g = g + weight_decay p
 *   AdamW   p = keep p                       keep = 1 - lr weight_decay
 * One kernel serves both, and RAdam: Adam has keep = 1, the others weight_decay = 0. */
#include "optim/internal.h"

#include <float.h>
#include <tgmath.h> /* sqrt of a Real is computed in Real */

static void adam_run(Real *values, uint16_t *bf16, Real *m, Real *v, const Real *gradients,
                     const StepScalars *scalars, Real beta1, Real beta2, int64_t n)
{
    const Real learning_rate = scalars->learning_rate, v_scale = scalars->v_scale;
    const Real weight_decay = scalars->weight_decay, keep = scalars->keep, eps = scalars->eps;
    BY_STORAGE(
        bf16 ? TENSOR_BF16 : TENSOR_REAL, T, PARALLEL_FOR(i, n) {
            const Real g = gradients[i] + weight_decay * values[i];
            m[i] = beta1 * m[i] + (1 - beta1) * g;
            v[i] = beta2 * v[i] + (1 - beta2) * g * g;
            store_weight(T, values, bf16, i,
                         keep * values[i] - learning_rate * m[i] / (v_scale * sqrt(v[i]) + eps));
        });
}

void adam_step_cpu(Real *values, Real *m, Real *v, const Real *gradients,
                   const StepScalars *scalars, Real beta1, Real beta2, int64_t n)
{
    for (Run run = { 0 }; next_run(&run, scalars, n);)
        adam_run(values + run.start, run_bf16(&run), m + run.start, v + run.start,
                 gradients + run.start, run.scalars, beta1, beta2, run.count);
}

static void adam_update(const Optimizer *optimizer, Real *values, const Real *gradients)
{
    DEVICE_CALL(optimizer->device, adam_step,
                (values, optimizer->m, optimizer->v, gradients, optimizer->current,
                 optimizer->beta1, optimizer->beta2, params_flat_count(optimizer->params)));
}

static StepScalars adam_scalars(const Optimizer *optimizer, double learning_rate)
{
    const double t = (double)optimizer->steps;
    return (StepScalars){
        .learning_rate = (Real)(learning_rate / (1 - pow((double)optimizer->beta1, t))),
        .weight_decay = (Real)optimizer->weight_decay,
        .keep = 1,
        .v_scale = (Real)(1 / sqrt(1 - pow((double)optimizer->beta2, t))),
        .eps = optimizer->eps,
    };
}

static StepScalars adamw_scalars(const Optimizer *optimizer, double learning_rate)
{
    StepScalars scalars = adam_scalars(optimizer, learning_rate);
    scalars.keep = (Real)(1 - learning_rate * optimizer->weight_decay);
    scalars.weight_decay = 0;
    return scalars;
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

Optimizer *adam_new(const char *function, Params *params, AdamConfig config, ScalarsOf *scalars)
{
    if (config.beta2 == 0 && config.eps == 0)
        error_raise("%s: beta2 and eps are both 0, which divides each gradient by its own size; "
                    "start from optim_adam_config",
                    function);
    return optimizer_new(function, (Optimizer){ .params = params,
                                                .scalars = scalars,
                                                .update = adam_update,
                                                .state_count = 2,
                                                .learning_rate = config.learning_rate,
                                                .beta1 = (Real)config.beta1,
                                                .beta2 = (Real)config.beta2,
                                                .eps = kernel_eps(config.eps),
                                                .weight_decay = config.weight_decay,
                                                .schedule = config.schedule });
}

Optimizer *optim_adam(Params *params, AdamConfig config)
{
    return adam_new("optim_adam", params, config, adam_scalars);
}

Optimizer *optim_adamw(Params *params, AdamConfig config)
{
    return adam_new("optim_adamw", params, config, adamw_scalars);
}
