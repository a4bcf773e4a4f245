/* Exercise 6.2: the backward pass of cosine similarity. */
#include <tapegrad.h>

void cosine_backward(Gradient dx, const Real *g, const Real *x, const Real *y, int R, int C);
