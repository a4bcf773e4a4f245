/* Answers to exercise 7.1 */
#include "exercise.h"
#include "../answer.h"

#include <math.h>

void adam_step(Real *p, Real *m, Real *v, const Real *g, int n, int t, Real lr, Real beta1,
               Real beta2, Real eps)
{
    const int power = is("t_minus_1") ? t - 1 : is("no_power") ? 1 : t;
    const Real m_1 = is("no_correction") ? 1 : 1 - pow(beta1, power);
    const Real v_1 = is("no_correction") || is("only_m") ? 1 : 1 - pow(beta2, power);
    if (is("exchanged")) {
        beta1 = 1 - beta1;
        beta2 = 1 - beta2;
    }
    for (int i = 0; i < n + is("loop_end"); i++) {
        const Real old_m = m[i];
        m[i] = beta1 * m[i] + (1 - beta1) * g[i];
        v[i] = beta2 * v[i] + (1 - beta2) * (is("no_square") ? g[i] : g[i] * g[i]);
        const Real m_hat = (is("old_m") ? old_m : m[i]) / m_1, v_hat = v[i] / v_1;
        const Real step = is("eps_inside") ? lr * m_hat / sqrt(v_hat + eps)
                          : is("no_root")  ? lr * m_hat / (v_hat + eps)
                                           : lr * m_hat / (sqrt(v_hat) + eps);
        p[i] -= is("upward") ? -step : is("unknown") ? 2 * step : step;
        if (is("stored")) {
            m[i] /= m_1;
            v[i] /= v_1;
        }
    }
}
