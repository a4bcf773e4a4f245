/* The steps of chapter 7 by its formulas, for two weights, in double. */
#include <math.h>
#include <stdbool.h>

typedef enum Method { SGD, ADAM, ADAMW, RADAM, MUON } Method;
static const double BETA2 = 0.999, EPS = 1e-8;

typedef struct Formulas {
    Method method;
    double lr, beta, weight_decay;
    double p[2], m[2], v[2], m_hat[2], v_hat[2];
    int t;
} Formulas;

/* a s + b s^3 + c s^5, `times` times */
static inline double polynomial(double s, int times)
{
    for (int i = 0; i < times; i++)
        s = 3.4445 * s - 4.7750 * pow(s, 3) + 2.0315 * pow(s, 5);
    return s;
}

/* The number of gradients of a plain mean whose gradients are as old as those of v_hat. */
static inline double rho_at(int t)
{
    return 2 / (1 - BETA2) - 1 - 2 * t * pow(BETA2, t) / (1 - pow(BETA2, t));
}

/* The variance of 1 / sqrt(v_hat) for gradients of variance 1. */
static inline double variance(double rho)
{
    return rho / (2 * (rho - 2) * (rho - 4));
}

static inline double rectification(int t)
{
    return sqrt(variance(2 / (1 - BETA2) - 1) / variance(rho_at(t)));
}

/* Step t of both weights with gradients g. Muon's matrix is diagonal: its singular values are the
 * elements, but for their signs. */
static inline void formulas_step(Formulas *f, const double *gradients)
{
    const int t = ++f->t;
    for (int i = 0; i < 2; i++) {
        const double g = gradients[i] + (f->method == ADAM ? f->weight_decay * f->p[i] : 0);
        f->m[i] = f->beta * f->m[i] + (f->method == SGD ? 1 : 1 - f->beta) * g;
        f->v[i] = BETA2 * f->v[i] + (1 - BETA2) * g * g;
        f->m_hat[i] = f->m[i] / (1 - pow(f->beta, t));
        f->v_hat[i] = f->v[i] / (1 - pow(BETA2, t));
    }
    for (int i = 0; i < 2; i++) {
        const double adam = f->m_hat[i] / (sqrt(f->v_hat[i]) + EPS);
        f->p[i] *= f->method == ADAMW ? 1 - f->lr * f->weight_decay : 1;
        if (f->method == SGD)
            f->p[i] -= f->lr * f->m[i];
        else if (f->method == RADAM)
            f->p[i] -= f->lr * (rho_at(t) > 5 ? rectification(t) * adam : f->m_hat[i]);
        else if (f->method == MUON)
            f->p[i] -= f->lr * polynomial(f->m[i] / hypot(f->m[0], f->m[1]), 5);
        else
            f->p[i] -= f->lr * adam;
    }
}
