/* Answers to exercise 7.2 */
#include "exercise.h"
#include "../answer.h"

#include <math.h>

void clip(Real *const *gradients, const int *counts, int arrays, Real c)
{
    const bool at_once = is("each_array") || is("too_early");
    Real sum = 0, norm = 0;
    for (int k = 0; k < arrays; k++) {
        sum = is("each_array") || is("sum_of_norms") ? 0 : sum;
        for (int i = 0; i < counts[k]; i++) {
            const Real square = gradients[k][i] * gradients[k][i];
            sum = is("max_norm") ? fmax(sum, square) : sum + square;
        }
        norm = is("sum_of_norms") ? norm + sqrt(sum) : is("no_root") ? sum : sqrt(sum);
        for (int i = 0; i < counts[k] && at_once && norm > c; i++)
            gradients[k][i] *= c / norm;
        if (is("only_first"))
            break;
    }
    const Real factor = at_once              ? 1
                        : is("with_eps")     ? fmin(1, c / (norm + 1e-6))
                        : is("enlarges")     ? c / (norm + 1e-6)
                        : is("divides_by_0") ? c / norm
                        : is("no_c")         ? (norm > c ? 1 / norm : 1)
                                             : (norm > c ? c / norm : 1);
    for (int k = 0; k < arrays; k++)
        for (int i = 0; i < counts[k]; i++) {
            Real *x = &gradients[k][i];
            *x = is("each_element") ? fmax(-c, fmin(c, *x)) : *x * factor;
        }
}
