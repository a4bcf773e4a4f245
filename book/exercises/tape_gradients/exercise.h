/* Exercise 1.1: the backward pass of a tape of numbers. */
#include <tapegrad.h>

typedef struct Entry {
    char operation; /* 'x': an input; '+', '*'; 'e': the exponential function */
    int a, b;       /* the operands: entries before this one; of 'e' both are the same */
} Entry;

void tape_gradients(Real *gradient, const Entry *entries, const Real *value, int count);
