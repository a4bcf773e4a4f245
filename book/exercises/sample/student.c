/* Exercise 12.2. p = softmax(logits / temperature) over n classes, and u is uniform in [0, 1).
 * Return the first class c with p_0 + .. + p_c > u, or n - 1 where rounding leaves none. Logits may
 * be large, and -INFINITY where a class is excluded; temperature > 0. Then, in the folder
 * exercises,
 *     cc -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I. sample/[se]*.c grade.c tapegrad.c -lm
 *     ./a.out */
#include "exercise.h"

#include <math.h>

int sample(const Real *logits, int n, double temperature, double u)
{
    /* your lines */
    return 0;
}
