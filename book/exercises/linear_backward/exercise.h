/* Exercise 4.1: the backward pass of a linear layer. */
#include <tapegrad.h>

void linear_backward(Real *dx, Real *dw, Real *db, const Real *g, const Real *x, const Real *w,
                     int R, int I, int O);
