/* An optimizer of the library in a bowl, beside the formulas of chapter 7. */
#include "formulas.h"

#include <tapegrad.h>

typedef struct Run {
    Params *params;
    Tensor *w; /* [2, 2]; the two weights are its diagonal */
    Optimizer *optimizer;
    Formulas f;
} Run;

static Tape *tape;
static bool right = true; /* whether all numbers agree so far */

static inline void require_equal(Real library, double formula)
{
    right &= fabs((double)library - formula) <= 1e-3 * (1 + fabs(formula));
}

static inline Run begin(Formulas f)
{
    Params *params = params_new(device_open("plain"), /*seed*/ 1);
    Tensor *w = params_add(params, "w", shape(2, 2), (Initializer){ .kind = INITIAL_ZERO });
    tensor_write(w, (Real[]){ (Real)f.p[0], 0, 0, (Real)f.p[1] });
    SGDConfig sgd = optim_sgd_config(f.lr);
    AdamConfig adam = optim_adam_config(f.lr);
    MuonConfig muon = optim_muon_config(f.lr, f.lr);
    sgd.momentum = adam.beta1 = muon.momentum = f.beta;
    adam.weight_decay = f.weight_decay;
    muon.nesterov = false;
    Optimizer *optimizer = f.method == SGD     ? optim_sgd(params, sgd)
                           : f.method == ADAM  ? optim_adam(params, adam)
                           : f.method == ADAMW ? optim_adamw(params, adam)
                           : f.method == RADAM ? optim_radam(params, adam)
                                               : optim_muon(params, muon);
    return (Run){ params, w, optimizer, f };
}

static inline void end(Run *run)
{
    optim_free(run->optimizer);
    params_free(run->params);
}

static inline double weight(const Run *run, int i)
{
    return (double)run->w->data[3 * i];
}

static inline double loss_of(double k, double c, double w)
{
    return k * w * w / 2 + c * w;
}

/* A step down L = sum k_i w_i^2 / 2 + c_i w_i, whose gradients are k_i w_i + c_i. */
static inline void library_step(Run *run, const Real *k, const Real *c)
{
    Tensor *factor = op_multiply(tape, run->w, tape_input(tape, k, shape(2, 2)));
    factor = op_add(tape, op_scale(tape, factor, 0.5), tape_input(tape, c, shape(2, 2)));
    tape_backward(tape, op_sum(tape, op_multiply(tape, run->w, factor), ALL_AXES));
    for (int i = 0; i < 4; i++) {
        const double w = (double)run->w->data[i], h = 0.01;
        const double k_i = (double)k[i], c_i = (double)c[i];
        const double change = loss_of(k_i, c_i, w + h) - loss_of(k_i, c_i, w - h);
        require_equal(tensor_gradient(run->w)->data[i], change / (2 * h));
    }
    optim_step(run->optimizer);
    tape_reset(tape);
}

/* Steps of both weights, by the library and by the formulas. Muon's first 10 are compared: later
 * its weights change sign in each step, and rounding decides when. */
static inline void advance(Run *run, const double *k, const double *c, int steps)
{
    for (int step = 0; step < steps; step++) {
        const double *p = run->f.p;
        library_step(run, (Real[]){ (Real)k[0], 0, 0, (Real)k[1] },
                     (Real[]){ (Real)c[0], 0, 0, (Real)c[1] });
        formulas_step(&run->f, (double[]){ k[0] * p[0] + c[0], k[1] * p[1] + c[1] });
        for (int i = 0; i < 2 && (run->f.method != MUON || run->f.t <= 10); i++)
            require_equal(run->w->data[3 * i], p[i]);
    }
}
