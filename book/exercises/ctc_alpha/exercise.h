/* Exercise 11.2: the probability of a target by the recurrence of alpha. */
#include <tapegrad.h>

double ctc_alpha(const Real *y, int T, int K, const int *target, int n);
