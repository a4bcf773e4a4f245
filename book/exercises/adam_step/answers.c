/* Answers to exercise 7.1, compiled with -Dright, -Dno_root, ...; expected.txt has the grader's
 * sentences. */
#include "exercise.h"

#include <math.h>

void adam_step(Real *p, Real *m, Real *v, const Real *g, int n, int t, Real lr, Real beta1,
               Real beta2, Real eps)
{
#ifdef exchanged
    const Real m_1 = 1 - pow(beta1, t), v_1 = 1 - pow(beta2, t);
    beta1 = 1 - beta1;
    beta2 = 1 - beta2;
#elif defined no_correction
    const Real m_1 = 1, v_1 = 1;
#elif defined only_m
    const Real m_1 = 1 - pow(beta1, t), v_1 = 1;
#elif defined t_minus_1
    const Real m_1 = 1 - pow(beta1, t - 1), v_1 = 1 - pow(beta2, t - 1);
#elif defined no_power
    const Real m_1 = 1 - beta1, v_1 = 1 - beta2;
#else
    const Real m_1 = 1 - pow(beta1, t), v_1 = 1 - pow(beta2, t);
#endif
#ifdef loop_end
    n++;
#endif
    for (int i = 0; i < n; i++) {
#ifdef old_m
        const Real m_i = m[i];
        m[i] = beta1 * m[i] + (1 - beta1) * g[i];
#else
        m[i] = beta1 * m[i] + (1 - beta1) * g[i];
        const Real m_i = m[i];
#endif
#ifdef no_square
        v[i] = beta2 * v[i] + (1 - beta2) * g[i];
#else
        v[i] = beta2 * v[i] + (1 - beta2) * g[i] * g[i];
#endif
#ifdef eps_inside
        p[i] -= lr * (m_i / m_1) / sqrt(v[i] / v_1 + eps);
#elif defined no_root
        p[i] -= lr * (m_i / m_1) / (v[i] / v_1 + eps);
#elif defined upward
        p[i] += lr * (m_i / m_1) / (sqrt(v[i] / v_1) + eps);
#elif defined unknown
        p[i] -= 2 * lr * (m_i / m_1) / (sqrt(v[i] / v_1) + eps);
#else
        p[i] -= lr * (m_i / m_1) / (sqrt(v[i] / v_1) + eps);
#endif
#ifdef stored
        m[i] /= m_1;
        v[i] /= v_1;
#endif
    }
}
