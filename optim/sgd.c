/* Stochastic gradient descent, with momentum (Polyak 1964), of weights p with the gradient g and
 * the learning rate lr:
 *   g = g + weight_decay p        the gradient of weight_decay |p|^2 / 2
 *   m = momentum m + g            m starts at 0; without momentum m = g, and there is no array m
 *   p = p - lr m
 * Nesterov's momentum takes g at the point that momentum alone will reach, p - lr momentum m
 * (Sutskever, Martens, Dahl, Hinton 2013, equations 3 and 4). Stored as the weights, that point's
 * own step is, as in PyTorch,
 *   p = p - lr (g + momentum m)   with the new m */
#include "ops/kernels.h"
#include "optim/internal.h"

void sgd_step_plain(Real *p, Real *m, const Real *gradients, const StepScalars *scalars, int64_t n)
{
    for (Run run = { 0 }; next_run(&run, scalars, n);) {
        const StepScalars s = *run.scalars;
        const bool nesterov = s.own > 0;
        EACH(k, run.count) {
            const int64_t i = run.start + k;
            const Real g = gradients[i] + s.weight_decay * p[i];
            const Real m_i = m ? s.momentum * m[i] + g : g;
            if (m)
                m[i] = m_i;
            p[i] -= s.learning_rate * (nesterov ? g + s.momentum * m_i : m_i);
        }
    }
}

static void sgd_update(const Optimizer *o, Real *p, const Real *gradients)
{
    op_kernels_on(o->device, TENSOR_REAL)
        ->sgd_step(p, o->states[0], gradients, o->scalars, o->range.count);
}

static StepScalars sgd_scalars(const Optimizer *o, int role, double learning_rate,
                               double decay_factor)
{
    (void)role;
    return (StepScalars){ .learning_rate = (Real)learning_rate,
                          .weight_decay = (Real)(o->weight_decay * decay_factor),
                          .momentum = o->momentum,
                          .own = o->nesterov };
}

SGDConfig optim_sgd_config(double learning_rate)
{
    return (SGDConfig){ .learning_rate = learning_rate };
}

Optimizer *optim_sgd(Params *params, SGDConfig config)
{
    static const OptimizerKind sgd = { "sgd", .states = { STATE_PREFIX "m." },
                                       .scalars = sgd_scalars, .update = sgd_update };
    if (config.nesterov && config.momentum == 0)
        error_raise("optim_sgd: nesterov is true and momentum is 0, expected momentum above 0");
    return optim_new("optim_sgd", (Optimizer){ .kind = &sgd,
                                               .params = params,
                                               .state_count = config.momentum != 0,
                                               .learning_rate = config.learning_rate,
                                               .momentum = (Real)config.momentum,
                                               .nesterov = config.nesterov,
                                               .weight_decay = config.weight_decay,
                                               .schedule = config.schedule });
}
