/* Stochastic gradient descent, with momentum (Polyak 1964):
 *   g = g + weight_decay p        the gradient of weight_decay |p|^2 / 2
 *   m = momentum m + g            m starts at 0
 *   p = p - lr m
 * Without momentum m = g, and there is no state. */
#include "optim/internal.h"

static void sgd_run(Real *values, uint16_t *bf16, const Real *gradients, const StepScalars *scalars,
                    int64_t n)
{
    const Real learning_rate = scalars->learning_rate, weight_decay = scalars->weight_decay;
    BY_STORAGE(
        bf16 ? TENSOR_BF16 : TENSOR_REAL, T, PARALLEL_FOR(i, n) {
            const Real g = gradients[i] + weight_decay * values[i];
            store_weight(T, values, bf16, i, values[i] - learning_rate * g);
        });
}

void sgd_step_cpu(Real *values, const Real *gradients, const StepScalars *scalars, int64_t n)
{
    for (Run run = { 0 }; next_run(&run, scalars, n);)
        sgd_run(values + run.start, run_bf16(&run), gradients + run.start, run.scalars, run.count);
}

static void sgd_momentum_run(Real *values, uint16_t *bf16, Real *m, const Real *gradients,
                             const StepScalars *scalars, Real momentum, int64_t n)
{
    const Real learning_rate = scalars->learning_rate, weight_decay = scalars->weight_decay;
    BY_STORAGE(
        bf16 ? TENSOR_BF16 : TENSOR_REAL, T, PARALLEL_FOR(i, n) {
            const Real g = gradients[i] + weight_decay * values[i];
            m[i] = momentum * m[i] + g;
            store_weight(T, values, bf16, i, values[i] - learning_rate * m[i]);
        });
}

void sgd_momentum_step_cpu(Real *values, Real *m, const Real *gradients, const StepScalars *scalars,
                           Real momentum, int64_t n)
{
    for (Run run = { 0 }; next_run(&run, scalars, n);)
        sgd_momentum_run(values + run.start, run_bf16(&run), m + run.start, gradients + run.start,
                         run.scalars, momentum, run.count);
}

static void sgd_update(const Optimizer *optimizer, Real *values, const Real *gradients)
{
    const int64_t n = params_flat_count(optimizer->params);
    if (optimizer->m)
        DEVICE_CALL(optimizer->device, sgd_momentum_step,
                    (values, optimizer->m, gradients, optimizer->current, optimizer->momentum, n));
    else
        DEVICE_CALL(optimizer->device, sgd_step, (values, gradients, optimizer->current, n));
}

static StepScalars sgd_scalars(const Optimizer *optimizer, double learning_rate)
{
    return (StepScalars){ .learning_rate = (Real)learning_rate,
                          .weight_decay = (Real)optimizer->weight_decay };
}

SGDConfig optim_sgd_config(double learning_rate)
{
    return (SGDConfig){ .learning_rate = learning_rate };
}

Optimizer *optim_sgd(Params *params, SGDConfig config)
{
    return optimizer_new("optim_sgd", (Optimizer){ .params = params,
                                                   .scalars = sgd_scalars,
                                                   .update = sgd_update,
                                                   .state_count = config.momentum != 0,
                                                   .learning_rate = config.learning_rate,
                                                   .momentum = (Real)config.momentum,
                                                   .weight_decay = config.weight_decay,
                                                   .schedule = config.schedule });
}
