/* Exercise 8.2: the backward pass of causal attention. */
#include <tapegrad.h>

void attention_backward(Real *dq, Real *dk, Real *dv, const Real *g, const Real *q, const Real *k,
                        const Real *v, const Real *out, const Real *m, const Real *inverse, int N,
                        int D, int M);
