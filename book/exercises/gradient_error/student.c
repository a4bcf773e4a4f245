/* Exercise 2.1. dx is a gradient of f at x, perhaps a wrong one. Compare each dx[j] with the
 * central difference of f along x[j]. Return the largest |dx[j] - difference_j|, divided by the
 * largest |difference_j|; return NaN if an element of dx is NaN. You may change x[j], but restore
 * it. Then, in the folder exercises,
 *     cc -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I. gradient_error/[se]*.c grade.c tapegrad.c -lm
 *     ./a.out */
#include "exercise.h"

#include <math.h>

double gradient_error(Function *f, Real *x, int n, const Real *dx)
{
    /* your lines */
    return 0;
}
