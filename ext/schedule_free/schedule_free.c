/* Schedule-free AdamW (Defazio et al. 2024), in step t = 1, 2, ...:
 *   g at the weights y = z + beta1 (x - z)
 *   v = beta2 v + (1 - beta2) g^2            v_hat = v / (1 - beta2^t)
 *   z = z - lr (g / (sqrt(v_hat) + eps) + weight_decay y)
 *   c = lr^2 / sum of the lr^2 so far        x = x + c (z - x)
 * x averages the z, in place of a schedule that lowers the learning rate. Training uses y, and
 * evaluation x: optim_set_training exchanges them, exactly, since x and z are both stored.
 * v_hat corrects v alone, as in Song et al. 2025 (2507.09846). The authors' program multiplies lr
 * by sqrt(1 - beta2^t) and divides by sqrt(v) + eps, so its first steps have a smaller decay and a
 * smaller weight in x. */
#include "ext/schedule_free/schedule_free.h"

#include "ext/schedule_free/kernels.h"

#include <stddef.h>

static void schedule_free_step_plain(Real *p, Real *x, Real *z, Real *v, const Real *gradients,
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
            x[i] += s.own * (z[i] - x[i]);
            p[i] = schedule_free_point(x[i], z[i], s.beta1);
        }
    }
}

static void schedule_free_weights_plain(Real *p, const Real *x, const Real *z, Real beta1,
                                        int64_t n)
{
    EACH(i, n)
        p[i] = schedule_free_point(x[i], z[i], beta1);
}

const ScheduleFreeKernels schedule_free_plain = { schedule_free_step_plain,
                                                  schedule_free_weights_plain };

/* The states. A file has x as the weights, and z as m, Adam's first state. */
enum { STATE_Z, STATE_V, STATE_X };

typedef struct ScheduleFree {
    bool evaluating;   /* the weights are x, not y */
    double square_sum; /* of the learning rates so far */
    double c;          /* of this step */
} ScheduleFree;

static void schedule_free_start(const Optimizer *o)
{
    const Real *p = params_flat_values(o->params)->data + o->range.first;
    const size_t bytes = (size_t)o->range.count * sizeof(Real);
    device_copy(o->device, o->states[STATE_X], p, bytes);
    device_copy(o->device, o->states[STATE_Z], p, bytes);
}

static void schedule_free_begin(Optimizer *o, double learning_rate)
{
    ScheduleFree *own = o->own;
    const double square = learning_rate * learning_rate;
    own->square_sum += square;
    own->c = own->square_sum > 0 ? square / own->square_sum : 0;
}

static StepScalars schedule_free_scalars(const Optimizer *o, int role, double learning_rate,
                                         double decay_factor)
{
    const ScheduleFree *own = o->own;
    StepScalars scalars = optim_adamw_scalars(o, role, learning_rate, 0);
    scalars.weight_decay = (Real)(o->weight_decay * decay_factor);
    scalars.own = (Real)own->c;
    return scalars;
}

static void schedule_free_prepare(const Optimizer *o, const Real *gradients)
{
    const ScheduleFree *own = o->own;
    (void)gradients;
    if (own->evaluating)
        error_raise("optim_step: the weights are those of evaluation; call "
                    "optim_set_training(optimizer, true) before the forward pass");
}

static void schedule_free_update(const Optimizer *o, Real *p, const Real *gradients)
{
    schedule_free_kernels(o->device)->step(p, o->states[STATE_X], o->states[STATE_Z],
                                           o->states[STATE_V], gradients, o->scalars,
                                           o->range.count);
}

static void schedule_free_set_weights(const Optimizer *o, Real *p)
{
    const ScheduleFree *own = o->own;
    const Real *x = o->states[STATE_X], *z = o->states[STATE_Z];
    if (own->evaluating)
        device_copy(o->device, p, x, (size_t)o->range.count * sizeof(Real));
    else
        schedule_free_kernels(o->device)->weights(p, x, z, o->beta1, o->range.count);
}

static bool schedule_free_set_training(Optimizer *o, bool on)
{
    ScheduleFree *own = o->own;
    const bool before = !own->evaluating;
    own->evaluating = !on;
    if (on != before && o->steps > 0)
        optim_set_weights(o);
    return before;
}

Optimizer *optim_schedule_free_adamw(Params *params, AdamConfig config)
{
    static const char function[] = "optim_schedule_free_adamw";
    static const OptimizerKind kind = {
        "schedule_free_adamw",
        .states = { [STATE_Z] = STATE_PREFIX "m.", [STATE_V] = STATE_PREFIX "v.", [STATE_X] = "" },
        .own_bytes = sizeof(ScheduleFree),
        .numbers = { { "tapegrad.square_sum", offsetof(ScheduleFree, square_sum) } },
        .start = schedule_free_start,
        .begin = schedule_free_begin,
        .scalars = schedule_free_scalars,
        .prepare = schedule_free_prepare,
        .update = schedule_free_update,
        .set_training = schedule_free_set_training,
        .set_weights = schedule_free_set_weights,
    };
    Optimizer from = optim_adam_template(function, &kind, params, config);
    const Schedule *schedule = &from.schedule;
    if (schedule->kind && (schedule->kind != SCHEDULE_COSINE || schedule->last != 1))
        error_raise("%s: the schedule is of kind %d, expected optim_constant or optim_warm_up: the "
                    "average is in place of others",
                    function, (int)schedule->kind);
    from.state_count = 3;
    return optim_new(function, from);
}
