/* Exercise 2.1: how far a gradient is from central differences. */
#include <tapegrad.h>

/* A function of n numbers. */
typedef double Function(const Real *x, int n);

double gradient_error(Function *f, Real *x, int n, const Real *dx);
