/* Exercise 10.1: one position of the delta rule. */
#include <tapegrad.h>

enum { MAX_M = 4 };

void delta_step(Real *out, Real *S, const Real *k, const Real *v, const Real *q, Real beta, int D,
                int M);
