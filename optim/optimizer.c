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
static size_t block_bytes(const Optimizer *optimizer)
{
    const int64_t n = optimizer->state_count * optimizer->range.count;
    return (size_t)n * sizeof(Real) + sizeof(StepScalars);
}

/* Allocates the zeroed states; false when memory is exhausted. */
static bool allocate_states(Optimizer *optimizer)
{
    const size_t bytes = block_bytes(optimizer);
    optimizer->block = device_allocate(optimizer->device, bytes);
    if (!optimizer->block)
        return false;
    Real *data = optimizer->block->data;
    device_zero(optimizer->device, data, bytes);
    for (int i = 0; i < optimizer->state_count; i++, data += optimizer->range.count)
        optimizer->states[i] = data;
    optimizer->scalars = (StepScalars *)data;
    return true;
}

Optimizer *optim_new(const char *function, Optimizer from)
{
    check_template(function, &from);
    from.device = from.params->device;
    from.plateau = (Plateau){ .best = INFINITY, .factor = 1 };
    const char *error = params_allocate(from.params);
    if (error)
        error_raise("%s: the weights %s", function, error);
    from.range = (FlatRange){ 0, from.params->flat_count };
    Optimizer *optimizer = memory_allocate(sizeof *optimizer + from.kind->own_bytes);
    if (!optimizer || !allocate_states(&from)) {
        free(optimizer);
        error_raise("%s: %s", function, device_exhausted(from.device, block_bytes(&from)).text);
    }
    *optimizer = from;
    optimizer->own = memset(optimizer + 1, 0, from.kind->own_bytes);
    return optimizer;
}

void optim_set_range(const char *function, Optimizer *optimizer, FlatRange range)
{
    device_free(optimizer->device, optimizer->block);
    optimizer->range = range;
    if (allocate_states(optimizer))
        return;
    const size_t bytes = block_bytes(optimizer);
    optimizer->range.count = -1; /* optim_need raises until another call succeeds */
    error_raise("%s: %s", function, device_exhausted(optimizer->device, bytes).text);
}

void optim_free(Optimizer *optimizer)
{
    if (!optimizer)
        return;
    groups_free(optimizer);
    if (optimizer->kind->free)
        optimizer->kind->free(optimizer);
    device_free(optimizer->device, optimizer->block);
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
    const OptimizerKind *kind = optimizer->kind;
    const double learning_rate = optim_learning_rate(optimizer);
    groups_update(optimizer);
    if (kind->start && optimizer->steps == 0)
        kind->start(optimizer);
    if (kind->begin)
        kind->begin(optimizer, learning_rate);
    optimizer->steps++;
    StepScalars scalars = kind->scalars(optimizer, 0, learning_rate, 1);
    const Block *bf16 = optimizer->params->bf16;
    scalars.bf16 = bf16 ? (uint16_t *)bf16->data + optimizer->range.first : NULL;
    groups_set_scalars(optimizer, learning_rate, &scalars);
    device_copy_in(optimizer->device, optimizer->scalars, &scalars, sizeof scalars);
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
    Params *params = optimizer->params;
    const Real *gradients = params_sum_gradients("optim_step", params);
    check_norm(params);
    Real *values = params_flat_values(params)->data;
    if (optimizer->kind->prepare)
        optimizer->kind->prepare(optimizer, gradients);
    if (!device_is_capturing(optimizer->device))
        begin_step(optimizer);
    else if (!device_captures(optimizer->device)
                  ->before_replay(optimizer->device, begin_step, optimizer))
        error_raise("optim_step: a replayed step may contain one step per optimizer, this is the "
                    "second");
    optimizer->kind->update(optimizer, values + optimizer->range.first, gradients);
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
    return optimizer->kind->set_training ? optimizer->kind->set_training(optimizer, on) : true;
}

void optim_set_weights(const Optimizer *optimizer)
{
    Params *params = optimizer->params;
    Real *values = params_flat_values(params)->data;
    optimizer->kind->set_weights(optimizer, values + optimizer->range.first);
    if (params->shards)
        params->shards->gather(params, values);
    params_written(params);
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
