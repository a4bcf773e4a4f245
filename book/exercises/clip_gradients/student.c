/* Exercise 7.2. There are `arrays` gradients: gradients[k] has counts[k] elements. If the norm of
 * all elements together exceeds c, multiply all by c / norm. Then, in the folder exercises,
 *     cc -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I. clip_gradients/[se]*.c grade.c tapegrad.c -lm
 *     ./a.out */
#include "exercise.h"

#include <math.h>

void clip(Real *const *gradients, const int *counts, int arrays, Real c)
{
    /* your lines */
}
