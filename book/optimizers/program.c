/* The numbers of chapter 7: the library's optimizers in a bowl. Each step is compared with the
 * chapter's formulas, each gradient with central differences. */
#include "formulas.h"

#include <stdio.h>
#include <tapegrad.h>

/* An optimizer of the library, whose weights are the diagonal of w, and the formulas. */
typedef struct Run {
    Params *params;
    Tensor *w;
    Optimizer *optimizer;
    Formulas formulas;
} Run;

static Tape *tape;
static double k[2], c[2]; /* L = sum k_i p_i^2 / 2 + c_i p_i: the gradients are k_i p_i + c_i */
static bool right = true;

static Run begin(Formulas f)
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

static void end(Run *run)
{
    optim_free(run->optimizer);
    params_free(run->params);
}

static void require_equal(double library, double formula)
{
    if (fabs(library - formula) > 1e-3 * (1 + fabs(formula)))
        right = false;
}

static double loss_of(int i, double p)
{
    return k[i] * p * p / 2 + c[i] * p;
}

static void advance(Run *run, int steps)
{
    for (int step = 0; step < steps; step++) {
        const Real matrix[] = { (Real)k[0], 0, 0, (Real)k[1] };
        const Real linear[] = { (Real)c[0], 0, 0, (Real)c[1] };
        Tensor *bowl = op_multiply(tape, run->w, tape_input(tape, matrix, shape(2, 2)));
        bowl = op_add(tape, op_scale(tape, bowl, 0.5), tape_input(tape, linear, shape(2, 2)));
        tape_backward(tape, op_sum(tape, op_multiply(tape, run->w, bowl), ALL_AXES));
        double g[2];
        for (int i = 0; i < 2; i++) {
            const double p = (double)run->w->data[3 * i];
            g[i] = k[i] * run->formulas.p[i] + c[i];
            require_equal((double)tensor_gradient(run->w)->data[3 * i],
                          (loss_of(i, p + 0.01) - loss_of(i, p - 0.01)) / 0.02);
        }
        optim_step(run->optimizer);
        tape_reset(tape);
        step_by_formulas(&run->formulas, g);
        for (int i = 0; i < 2; i++)
            require_equal((double)run->w->data[3 * i], run->formulas.p[i]);
    }
}

/* The distance to the minimum, 0. */
static double distance(const Run *run)
{
    return hypot((double)run->w->data[0], (double)run->w->data[3]);
}
static void set(double *pair, double first, double second)
{
    pair[0] = first;
    pair[1] = second;
}

int main(void)
{
    tape = tape_new(device_open("plain"));
    set(k, 1, 25);
    printf("[rate]\nlr      p_1     p_2, after 50 steps\n");
    static const double rates[] = { 0.02, 0.07, 0.079, 0.081, 0.09 };
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        Run run = begin((Formulas){ .method = SGD, .lr = rates[i], .p = { 4, 1 } });
        advance(&run, 50);
        printf("%.3f  %7.4f  %g\n", rates[i], (double)run.w->data[0], (double)run.w->data[3]);
        end(&run);
    }
    printf("[paths]\n");
    static const char *const names[] = { "SGD", "Adam", "AdamW", "RAdam", "Muon" };
    for (int kind = -1; kind <= MUON; kind++) {
        printf("%-9s", kind < 0 ? "momentum" : names[kind]);
        Run run = begin((Formulas){ .method = kind < 0 ? SGD : (Method)kind, .lr = 0.07,
            .beta = kind == SGD ? 0 : 0.5, .p = { 4, 1 } });
        static const int stops[] = { 10, 20, 70, 100 };
        for (int i = 0; i < 4; i++) {
            advance(&run, stops[i]);
            printf("  %8.2g", distance(&run));
        }
        printf(" %d\n", right);
        end(&run);
    }
    return !right;
}
