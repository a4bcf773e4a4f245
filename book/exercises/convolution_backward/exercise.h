/* Exercise 4.2: the backward pass of a convolution in one dimension. */
#include <tapegrad.h>

void convolution_backward(Real *dx, Real *dw, const Real *g, const Real *x, const Real *w, int N,
                          int K);
