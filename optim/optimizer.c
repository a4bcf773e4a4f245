/* The part common to all optimizers: checks, state, steps. */
#include "optim/internal.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------- checking
 * The kernels compute in Real, so a double that overflows it is not finite. */
void optim_check_not_negative(const char *function, const char *name, double value)
{
    if (!(value >= 0 && isfinite((Real)value)))
        error_raise("%s: %s is %g, expected 0 or more, and finite", function, name, value);
}

static void check_below_one(const char *function, const char *name, Real value)
{
    if (!(value >= 0 && value < 1))
        error_raise("%s: %s is %g, expected at least 0 and less than 1", function, name,
                    (double)value);
}

static void check_template(const char *function, const Optimizer *template)
{
    error_need(function, "params", template->params);
    if (params_count(template->params) == 0)
        error_raise("%s: there are no weights; register them first", function);
    optim_check_not_negative(function, "learning_rate", template->learning_rate);
    optim_check_not_negative(function, "weight_decay", template->weight_decay);
    optim_check_not_negative(function, "eps", (double)template->eps);
    check_below_one(function, "momentum", template->momentum);
    check_below_one(function, "beta1", template->beta1);
    check_below_one(function, "beta2", template->beta2);
    schedule_check(function, &template->schedule);
}

/* ----------------------------------------------------------------------------------------- life */
static size_t moment_bytes(const Optimizer *optimizer)
{
    const int64_t n = optimizer->state_count * optimizer->range.count;
    return (size_t)n * sizeof(Real) + sizeof(StepScalars);
}

/* Allocates the zeroed state; false when memory is exhausted. */
static bool allocate_state(Optimizer *optimizer)
{
    const int64_t n = optimizer->range.count;
    const size_t bytes = moment_bytes(optimizer);
    optimizer->state = device_allocate(optimizer->device, bytes);
    if (!optimizer->state)
        return false;
    Real *data = optimizer->state->data;
    device_zero(optimizer->device, data, bytes);
    optimizer->m = optimizer->state_count > 0 ? data : NULL;
    optimizer->v = optimizer->state_count > 1 ? data + n : NULL;
    optimizer->average = optimizer->state_count > 2 ? data + 2 * n : NULL;
    optimizer->current = (StepScalars *)(data + optimizer->state_count * n);
    return true;
}

Optimizer *optim_new(const char *function, Optimizer template)
{
    check_template(function, &template);
    template.kind = function + strlen("optim_");
    template.device = template.params->device;
    template.plateau = (Plateau){ .best = INFINITY, .factor = 1 };
    const char *error = params_allocate(template.params);
    if (error)
        error_raise("%s: the weights %s", function, error);
    template.range = (FlatRange){ 0, template.params->flat_count };
    Optimizer *optimizer = memory_allocate(sizeof *optimizer);
    if (!optimizer || !allocate_state(&template)) {
        free(optimizer);
        error_raise("%s: %s", function,
                    device_exhausted(template.device, moment_bytes(&template)).text);
    }
    *optimizer = template;
    return optimizer;
}

void optim_set_range(const char *function, Optimizer *optimizer, FlatRange range)
{
    device_free(optimizer->device, optimizer->state);
    optimizer->range = range;
    if (allocate_state(optimizer))
        return;
    const size_t bytes = moment_bytes(optimizer);
    optimizer->range.count = -1; /* optim_need raises until another call succeeds */
    error_raise("%s: %s", function, device_exhausted(optimizer->device, bytes).text);
}

void optim_free(Optimizer *optimizer)
{
    if (!optimizer)
        return;
    groups_free(optimizer);
    muon_free(optimizer);
    device_free(optimizer->device, optimizer->state);
    free(optimizer);
}

/* ---------------------------------------------------------------------------------------- steps */
double optim_learning_rate(const Optimizer *optimizer)
{
    optim_need("optim_learning_rate", optimizer);
    return optimizer->learning_rate *
           schedule_factor(&optimizer->schedule, &optimizer->plateau, optimizer->steps + 1);
}

/* The host's part of every step: counts it and uploads the per-step scalars. */
static void begin_step(void *context)
{
    Optimizer *optimizer = context;
    const double learning_rate = optim_learning_rate(optimizer);
    groups_update(optimizer);
    if (optimizer->average)
        schedule_free_begin(optimizer, learning_rate);
    optimizer->steps++;
    StepScalars scalars = optimizer->scalars(optimizer, learning_rate, optimizer->weight_decay);
    const Block *bf16 = optimizer->params->bf16;
    scalars.bf16 = bf16 ? (uint16_t *)bf16->data + optimizer->range.first : NULL;
    groups_set_scalars(optimizer, learning_rate, &scalars);
    device_copy_in(optimizer->device, optimizer->current, &scalars, sizeof scalars);
}

/* Raises if the gradients were clipped and their norm is not finite. The norm cannot be read during
 * a capture. */
static void check_norm(Params *params)
{
    if (!params->clipped || device_is_capturing(params->device))
        return;
    const double norm = params_gradient_norm(params);
    if (!isfinite(norm))
        error_raise("optim_step: the norm of the gradients is %g, expected a finite one; the "
                    "weights are unchanged; tape_check_finite finds the operation",
                    norm);
}

void optim_need(const char *function, const Optimizer *optimizer)
{
    error_need(function, "the optimizer", optimizer);
    if (optimizer->range.count != params_range(optimizer->params).count)
        error_raise("%s: the optimizer is not divided as its weights are: call dist_optimizer",
                    function);
}

void optim_step(Optimizer *optimizer)
{
    optim_need("optim_step", optimizer);
    if (optimizer->evaluating)
        error_raise("optim_step: the weights are those of evaluation; call "
                    "optim_set_training(optimizer, true) before the forward pass");
    Params *params = optimizer->params;
    const Real *gradients = params_sum_gradients("optim_step", params);
    check_norm(params);
    Real *values = params_flat_values(params)->data;
    if (optimizer->prepare)
        optimizer->prepare(optimizer, gradients);
    if (!device_is_capturing(optimizer->device))
        begin_step(optimizer);
    else if (!device_captures(optimizer->device)
                  ->before_replay(optimizer->device, begin_step, optimizer))
        error_raise("optim_step: a replayed step may contain one step per optimizer, this is the "
                    "second");
    optimizer->update(optimizer, values + optimizer->range.first, gradients);
    params_zero_gradients(params);
    if (params->shards)
        params->shards->gather(params, values);
    if (params->shards || !device_is_cuda(params->device)) /* whose kernels write the bf16 copy */
        params_written(params);
}

bool optim_set_training(Optimizer *optimizer, bool on)
{
    optim_need("optim_set_training", optimizer);
    if (device_is_capturing(optimizer->device))
        error_raise("optim_set_training: this step is replayed; call it before the step");
    const bool before = !optimizer->evaluating;
    if (!optimizer->average || on == before)
        return before;
    optimizer->evaluating = !on;
    if (optimizer->steps > 0)
        schedule_free_set_weights(optimizer);
    return before;
}

int64_t optim_steps(const Optimizer *optimizer)
{
    optim_need("optim_steps", optimizer);
    return optimizer->steps;
}

void optim_set_learning_rate(Optimizer *optimizer, double learning_rate)
{
    optim_need("optim_set_learning_rate", optimizer);
    optim_check_not_negative("optim_set_learning_rate", "learning_rate", learning_rate);
    optimizer->learning_rate = learning_rate;
}
