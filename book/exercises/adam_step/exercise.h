/* Exercise 7.1: a step of Adam. */
#include <tapegrad.h>

void adam_step(Real *p, Real *m, Real *v, const Real *g, int n, int t, Real lr, Real beta1,
               Real beta2, Real eps);
