/* Exercise 1.2: the backward function of an operation with two inputs. */
#include <tapegrad.h>

void product_backward(Node *node);
