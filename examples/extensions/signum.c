/* An optimizer with a state, for an installed library: sign descent with momentum, Signum
 * (Bernstein, Wang, Azizzadenesheli, Anandkumar 2018, signSGD, algorithm 2), of weights p with the
 * gradient g:
 *     m = momentum m + (1 - momentum) g
 *     p = (1 - lr weight_decay) p - lr sign(m),      sign(0) = 0
 * A kind says how a step computes; the library has schedules, groups, frozen weights, clipping and
 * checkpoints. m is a state, so optim_save writes it and optim_load reads it. */
#include <extend.h>
#include <tapegrad.h>

#include "run.h"

typedef struct SignumKernels { /* n elements */
    void (*step)(Real *p, Real *m, const Real *gradients, const StepScalars *scalars, int64_t n);
} SignumKernels;

/* A run is elements with the same scalars: without groups there is one. */
static void step_plain(Real *p, Real *m, const Real *gradients, const StepScalars *scalars,
                       int64_t n)
{
    for (Run run = { 0 }; next_run(&run, scalars, n);) {
        const StepScalars s = *run.scalars;
        EACH(k, run.count) {
            const int64_t i = run.start + k;
            m[i] = s.momentum * m[i] + (1 - s.momentum) * gradients[i];
            p[i] = s.keep * p[i] - s.learning_rate * (Real)((m[i] > 0) - (m[i] < 0));
        }
    }
}

static void signum_update(const Optimizer *o, Real *p, const Real *gradients)
{
    static const SignumKernels plain = { step_plain };
    static const SignumKernels *const tables[KERNEL_TABLES] = { [KERNELS_PLAIN] = &plain };
    KERNELS_FOR(tables, o->device, TENSOR_REAL) /* plain's on "cpu" too; raises on "cuda" */
        ->step(p, o->states[0], gradients, o->scalars, o->range.count);
}

static StepScalars signum_scalars(const Optimizer *o, int role, double learning_rate,
                                  double decay_factor)
{
    (void)role;
    return (StepScalars){ .learning_rate = (Real)learning_rate,
                          .keep = (Real)(1 - learning_rate * o->weight_decay * decay_factor),
                          .momentum = o->momentum };
}

static Optimizer *signum(Params *params, SGDConfig config)
{
    static const OptimizerKind kind = { "signum", .states = { STATE_PREFIX "m." },
                                        .scalars = signum_scalars, .update = signum_update };
    return optim_new("signum", (Optimizer){ .kind = &kind,
                                            .params = params,
                                            .state_count = 1,
                                            .learning_rate = config.learning_rate,
                                            .momentum = (Real)config.momentum,
                                            .weight_decay = config.weight_decay,
                                            .schedule = config.schedule });
}

/* ------------------------------------------------------------------------------------- its use
 * A network of one hidden layer learns y = sin 2x. */
enum { POINTS = 64, HIDDEN = 32 };

static Optimizer *build(Params *params, void *model)
{
    Linear *layers = model;
    layers[0] = nn_linear(params, "first", 1, HIDDEN);
    layers[1] = nn_linear(params, "second", HIDDEN, 1);
    return signum(params, (SGDConfig){ .learning_rate = 5e-3,
                                       .momentum = 0.9,
                                       .schedule = optim_cosine(STEPS / 20, STEPS, 0) });
}

static Tensor *loss(Tape *tape, const void *model, int step)
{
    const Linear *layers = model;
    Real x[POINTS], y[POINTS];
    for (int i = 0; i < POINTS; i++) {
        x[i] = (Real)(-2 + 4.0 * i / POINTS);
        y[i] = (Real)sin(2 * (double)x[i]);
    }
    (void)step;
    Tensor *h = nn_linear_forward(tape, &layers[0], tape_input(tape, x, shape(POINTS, 1)));
    Tensor *out = nn_linear_forward(tape, &layers[1], op_tanh(tape, h));
    return op_mean_squared_error(tape, out, tape_input(tape, y, shape(POINTS, 1)));
}

/* Of one weight p = 1 and the gradients 1, -0.05, -1: m = 0.1, 0.085, -0.0235, so p - lr - lr + lr,
 * where the gradients' own signs would add lr twice. */
static bool steps_by_the_formula(void)
{
    static const Real gradients[3] = { 1, (Real)-0.05, -1 };
    Device *device = device_open("cpu");
    Params *params = params_new(device, /*seed*/ 1);
    Tensor *p = params_add(params, "p", shape(1), (Initializer){ INITIAL_ONE, 1 });
    Optimizer *optimizer = signum(params, (SGDConfig){ .learning_rate = 0.25, .momentum = 0.9 });
    Tape *tape = tape_new(device);
    for (int i = 0; i < 3; i++) {
        tape_backward(tape, op_multiply(tape, p, tape_input(tape, &gradients[i], shape(1))));
        optim_step(optimizer);
        tape_reset(tape);
    }
    const double last = tensor_item(p);
    printf("three steps from 1: %g, expected 0.75\n", last);
    tape_free(tape);
    optim_free(optimizer);
    params_free(params);
    return last == 0.75;
}

int main(void)
{
    Linear layers[2];
    const Task task = { "signum.safetensors", build, loss, layers, .max_loss = 0.01 };
    const bool right = steps_by_the_formula();
    return !(trains_and_resumes(task) && right);
}
