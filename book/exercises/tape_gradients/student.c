/* Exercise 1.1. A tape has `count` entries, and value[i] is the value of entries[i]. L is the last
 * entry. Set gradient[i] to the derivative of L by entry i, for all i. Then, in the folder
 * exercises,
 *     cc -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I. tape_gradients/[se]*.c grade.c tapegrad.c -lm
 *     ./a.out */
#include "exercise.h"

void tape_gradients(Real *gradient, const Entry *entries, const Real *value, int count)
{
    /* your lines */
}
