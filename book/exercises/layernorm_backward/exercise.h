/* Exercise 6.1: the backward pass of layer norm. */
#include <tapegrad.h>

void layernorm_backward(Gradient dx, const Real *h, const Real *n, const Real *r, int R, int C);
