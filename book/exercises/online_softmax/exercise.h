/* Exercise 8.1: one step of online softmax. */
#include <tapegrad.h>

void online_softmax(Real *m, Real *l, Real *o, const Real *s, const Real *v, int T, int M);
