/* Exercise 3.1: the gradient of a bias that is added to every row. */
#include <tapegrad.h>

void bias_backward(Gradient db, const Real *g, int R, int C);
