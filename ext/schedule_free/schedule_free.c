/* Schedule-free AdamW (Defazio et al. 2024, algorithm 1), in step t = 1, 2, ...:
 *   g at the weights y = z + beta1 (x - z)
 *   v = beta2 v + (1 - beta2) g^2            v_hat = v / (1 - beta2^t)
 *   z = z - lr (g / (sqrt(v_hat) + eps) + weight_decay y)
 *   c = lr^2 / sum of the lr^2 so far        x = x + c (z - x)
 * x averages the z, in place of a schedule that lowers the learning rate. Training uses y, and
 * evaluation x: optim_set_training exchanges them, exactly, since x and z are both stored. */
#include "ops/kernels.h"
#include "ops/shared/math.h"
#include "optim/internal.h"

void schedule_free_step_plain(Real *p, Real *x, Real *z, Real *v, const Real *gradients,
                              const StepScalars *scalars, int64_t n)
{
    for (Run run = { 0 }; next_run(&run, scalars, n);) {
        const StepScalars s = *run.scalars;
        EACH(k, run.count) {
            const int64_t i = run.start + k;
            const Real g = gradients[i];
            v[i] = s.beta2 * v[i] + (1 - s.beta2) * g * g;
            const Real sqrt_v_hat = s.v_scale * real_sqrt(v[i]);
            z[i] -= s.learning_rate * (g / (sqrt_v_hat + s.eps) + s.weight_decay * p[i]);
            x[i] += s.average * (z[i] - x[i]);
            p[i] = schedule_free_point(x[i], z[i], s.beta1);
        }
    }
}

void schedule_free_weights_plain(Real *p, const Real *x, const Real *z, Real beta1, int64_t n)
{
    EACH(i, n)
        p[i] = schedule_free_point(x[i], z[i], beta1);
}

static void schedule_free_update(const Optimizer *o, Real *p, const Real *gradients)
{
    kernels_on(o->device, TENSOR_REAL)
        ->schedule_free_step(p, o->average, o->m, o->v, gradients, o->current, o->range.count);
}

static StepScalars schedule_free_scalars(const Optimizer *o, double learning_rate,
                                         double weight_decay)
{
    StepScalars scalars = adamw_scalars(o, learning_rate, 0);
    scalars.weight_decay = (Real)weight_decay;
    scalars.average = o->average_weight;
    return scalars;
}

void schedule_free_start(const Optimizer *o)
{
    const Real *p = params_flat_values(o->params)->data + o->range.first;
    const size_t bytes = (size_t)o->range.count * sizeof(Real);
    device_copy(o->device, o->average, p, bytes);
    device_copy(o->device, o->m, p, bytes);
}

void schedule_free_begin(Optimizer *o, double learning_rate)
{
    if (o->steps == 0)
        schedule_free_start(o);
    const double square = learning_rate * learning_rate;
    o->square_sum += square;
    o->average_weight = o->square_sum > 0 ? (Real)(square / o->square_sum) : 0;
}

void schedule_free_set_weights(const Optimizer *o)
{
    const Shards *shards = o->params->shards;
    Real *values = params_flat_values(o->params)->data, *p = values + o->range.first;
    const int64_t n = o->range.count;
    if (o->evaluating)
        device_copy(o->device, p, o->average, (size_t)n * sizeof(Real));
    else
        kernels_on(o->device, TENSOR_REAL)->schedule_free_weights(p, o->average, o->m, o->beta1, n);
    if (shards)
        shards->gather(o->params, values);
    params_written(o->params);
}

Optimizer *optim_schedule_free_adamw(Params *params, AdamConfig config)
{
    static const char function[] = "optim_schedule_free_adamw";
    Optimizer template = optim_adam_template(function, params, config);
    const Schedule *schedule = &template.schedule;
    if (schedule->kind && (schedule->kind != SCHEDULE_COSINE || schedule->last != 1))
        error_raise("%s: the schedule is of kind %d, expected optim_constant or optim_warm_up: the "
                    "average is in place of others",
                    function, (int)schedule->kind);
    template.scalars = schedule_free_scalars;
    template.update = schedule_free_update;
    template.state_count = 3;
    return optim_new(function, template);
}
