/* Exercise 7.1: the right weights are those of optim_adam after t steps, the right averages are
 * sums over all gradients; the usual mistakes are variants of one step. */
#include "exercise.h"
#include "../grade.h"

#include <math.h>
#include <string.h>

enum { P, M, V, G, MAX_STEPS = 7 }; /* p, m and v are inputs and outputs */
static const double LR = 0.3, BETA1 = 0.8, BETA2 = 0.95, EPS = 0.05;

/* The weights after the steps 1 to t with gradients g[0], g[1], ... */
static void library(Real *p, const Real *first, Real g[][ELEMENTS], int n, int t)
{
    Params *params = params_new(device_open("plain"), /*seed*/ 1);
    Tensor *weight = params_add(params, "p", shape(n), (Initializer){ .kind = INITIAL_ZERO });
    tensor_write(weight, first);
    Optimizer *optimizer =
        optim_adam(params, (AdamConfig){ LR, BETA1, BETA2, EPS, .weight_decay = 0 });
    Tape *tape = tape_new(device_open("plain"));
    for (int step = 0; step < t; step++) {
        Tensor *factors = tape_input(tape, g[step], shape(n));
        tape_backward(tape, op_sum(tape, op_multiply(tape, weight, factors), ALL_AXES));
        optim_step(optimizer);
        tape_reset(tape);
    }
    memcpy(p, weight->data, (size_t)n * sizeof *p);
    tape_free(tape);
    optim_free(optimizer);
    params_free(params);
}

/* The averages after t steps. */
static void averages(Real *m, Real *v, Real g[][ELEMENTS], int n, int t)
{
    for (int i = 0; i < n; i++) {
        m[i] = v[i] = 0;
        for (int j = 0; j < t; j++) {
            m[i] += (1 - BETA1) * pow(BETA1, t - 1 - j) * g[j][i];
            v[i] += (1 - BETA2) * pow(BETA2, t - 1 - j) * g[j][i] * g[j][i];
        }
    }
}

/* In the first case the gradients are positive, so that an average of g has a root. */
static void make(Case *c, int index)
{
    static const int sizes[CASES][2] = { { 5, 3 }, { 3, 1 }, { 4, MAX_STEPS } };
    const int n = c->size[0] = sizes[index][0], t = c->size[1] = sizes[index][1];
    Real g[MAX_STEPS][ELEMENTS], first[ELEMENTS], right[ELEMENTS], m[ELEMENTS], v[ELEMENTS];
    case_normal(c, index, P, n);
    memcpy(first, c->in[P], sizeof first);
    case_normal(c, index, G, n * t);
    for (int i = 0; i < n * t; i++)
        g[i / n][i % n] = index == 0 ? fabs(c->in[G][i]) + 0.1 : c->in[G][i];
    library(c->in[P], first, g, n, t - 1);
    averages(c->in[M], c->in[V], g, n, t - 1);
    memcpy(c->in[G], g[t - 1], (size_t)n * sizeof(Real));
    library(right, first, g, n, t);
    averages(m, v, g, n, t);
    case_right(c, P, right, 1, n);
    case_right(c, M, m, 1, n);
    case_right(c, V, v, 1, n);
}

static void begin(const Case *c, const Gradient *out)
{
    for (int k = P; k <= V; k++)
        memcpy(out[k].data, c->in[k], (size_t)c->size[0] * sizeof(Real));
}

static void student(const Case *c, const Gradient *out)
{
    begin(c, out);
    adam_step(out[P].data, out[M].data, out[V].data, c->in[G], c->size[0], c->size[1], LR, BETA1,
              BETA2, EPS);
}

typedef enum {
    NO_CORRECTION,
    ONLY_M,
    PREVIOUS,
    NO_POWER,
    STORED,
    EPS_INSIDE,
    NO_SQUARE,
    NO_ROOT,
    OLD_M,
    EXCHANGED,
    UPWARD,
} Fault;

static void faulty(const Case *c, const Gradient *out)
{
    const Fault fault = (Fault)c->fault;
    const int t = fault == PREVIOUS ? c->size[1] - 1 : fault == NO_POWER ? 1 : c->size[1];
    const double beta1 = fault == EXCHANGED ? 1 - BETA1 : BETA1;
    const double beta2 = fault == EXCHANGED ? 1 - BETA2 : BETA2;
    const double m_correction = fault == NO_CORRECTION ? 1 : 1 - pow(BETA1, t);
    const double v_correction = fault == NO_CORRECTION || fault == ONLY_M ? 1 : 1 - pow(BETA2, t);
    begin(c, out);
    for (int i = 0; i < c->size[0]; i++) {
        Real *p = out[P].data + i, *m = out[M].data + i, *v = out[V].data + i;
        const Real g = c->in[G][i], old_m = *m;
        *m = beta1 * *m + (1 - beta1) * g;
        *v = beta2 * *v + (1 - beta2) * (fault == NO_SQUARE ? g : g * g);
        const double m_hat = (fault == OLD_M ? old_m : *m) / m_correction,
                     v_hat = *v / v_correction;
        const double size = fault == EPS_INSIDE ? sqrt(v_hat + EPS)
                            : fault == NO_ROOT  ? v_hat + EPS
                                                : sqrt(v_hat) + EPS;
        *p -= (fault == UPWARD ? -LR : LR) * m_hat / size;
        *m = fault == STORED ? m_hat : *m;
        *v = fault == STORED ? v_hat : *v;
    }
}

int main(void)
{
    return grade(&(Exercise){
        .name = "adam_step",
        .outputs = { "p", "m", "v" },
        .fills = true,
        .make = make,
        .student = student,
        .mistakes = {
            { begin, "p, m and v are as they were: the body is still empty" },
        },
        .faulty = faulty,
        .faults = {
            [NO_CORRECTION] = "the bias correction is missing: m and v begin with 0, and after t "
                              "steps the coefficients of the gradients sum to 1 - beta^t",
            [ONLY_M] = "v is not corrected: it begins with 0, as m does, so divide it by 1 - "
                       "beta2^t",
            [PREVIOUS] = "the correction is that of step t - 1: m and v have got t gradients; in "
                         "the first step 1 - beta^0 = 0 would divide",
            [NO_POWER] = "the correction divides by 1 - beta in every step: the power is missing, "
                         "1 - beta^t",
            [STORED] = "m and v hold the corrected averages: the next step averages on from the "
                       "uncorrected ones",
            [EPS_INSIDE] = "eps is inside the root: it belongs to sqrt(v_hat) + eps",
            [NO_SQUARE] = "v averages g: it averages g^2, the squared size, which has no sign",
            [NO_ROOT] = "the root is missing: v_hat is a squared size, and the step would depend "
                        "on the scale of g",
            [OLD_M] = "p moves by the m of the step before: update m first",
            [EXCHANGED] = "beta and 1 - beta are exchanged: the old average keeps the share beta",
            [UPWARD] = "p moves along its gradient, which increases L: subtract the step",
        },
    });
}
