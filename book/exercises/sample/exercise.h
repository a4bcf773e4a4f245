/* Exercise 12.2: a class drawn from logits. */
#include <tapegrad.h>

int sample(const Real *logits, int n, double temperature, double u);
