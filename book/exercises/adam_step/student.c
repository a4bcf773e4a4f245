/* Exercise 7.1. n weights p with gradients g take Adam's step number t, t = 1, 2, ...: update the
 * averages m and v, which hold those of step t - 1, and then p; pow(x, t) is in math.h. Then, in
 * the folder exercises,
 *     cc -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I. adam_step/[se]*.c grade.c tapegrad.c -lm
 *     ./a.out */
#include "exercise.h"

#include <math.h>

void adam_step(Real *p, Real *m, Real *v, const Real *g, int n, int t, Real lr, Real beta1,
               Real beta2, Real eps)
{
    /* your lines */
}
