/* Exercise 5.1: the backward pass of softmax. */
#include <tapegrad.h>

void softmax_backward(Gradient dx, const Real *g, const Real *p, int R, int C);
