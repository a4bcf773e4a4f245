/* Exercise 3.2: the backward pass of mish, a product of x and a function of a function. */
#include <tapegrad.h>

void mish_backward(Gradient dx, const Real *g, const Real *x, int n);
