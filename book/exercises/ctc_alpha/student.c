/* Exercise 11.2. y [T, K]: frame t emits symbol k with probability y[t * K + k]; symbol 0 is the
 * blank. Return p, the probability that the text is the target: n symbols, n >= 1, none of them the
 * blank. State s of the 2 n + 1 states, counted from 0, is the blank where s is even, and else
 * target[s / 2]. Then, in the folder exercises,
 *     cc -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I. ctc_alpha/[se]*.c grade.c tapegrad.c -lm
 *     ./a.out */
#include "exercise.h"

double ctc_alpha(const Real *y, int T, int K, const int *target, int n)
{
    const int S = 2 * n + 1;
    double alpha[T][S];
    /* your lines */
    return 0;
}
