/* Exercise 7.2: clipping by the global norm. */
#include <tapegrad.h>

void clip(Real *const *gradients, const int *counts, int arrays, Real c);
