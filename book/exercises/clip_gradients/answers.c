/* Answers to exercise 7.2, compiled with -Dright, -Dno_root, ...; expected.txt has the grader's
 * sentences. */
#include "exercise.h"

#include <math.h>

void clip(Real *const *gradients, const int *counts, int arrays, Real c)
{
    Real sum = 0, norm = 0;
    for (int k = 0; k < arrays; k++) {
#if defined each_array || defined sum_of_norms
        sum = 0;
#endif
        for (int i = 0; i < counts[k]; i++)
#ifdef max_norm
            sum = fmax(sum, gradients[k][i] * gradients[k][i]);
#else
            sum += gradients[k][i] * gradients[k][i];
#endif
#ifdef sum_of_norms
        norm += sqrt(sum);
#elif defined no_root
        norm = sum;
#else
            norm = sqrt(sum);
#endif
#if defined each_array || defined too_early
        for (int i = 0; i < counts[k] && norm > c; i++)
            gradients[k][i] *= c / norm;
#elif defined only_first
        break;
#endif
    }
    Real factor = c / norm;
#ifdef with_eps
    factor = fmin(1, c / (norm + 1e-6));
#elif defined enlarges
    factor = c / (norm + 1e-6);
#elif defined no_c
    factor = norm > c ? 1 / norm : 1;
#elif defined each_array || defined too_early
    factor = 1;
#elif !defined divides_by_0
    factor = norm > c ? c / norm : 1;
#endif
    for (int k = 0; k < arrays; k++)
        for (int i = 0; i < counts[k]; i++)
#ifdef each_element
            gradients[k][i] = fmax(-c, fmin(c, gradients[k][i] + 0 * factor));
#else
            gradients[k][i] *= factor;
#endif
}
