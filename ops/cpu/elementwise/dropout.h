#ifndef TAPEGRAD_OPS_CPU_ELEMENTWISE_DROPOUT_H
#define TAPEGRAD_OPS_CPU_ELEMENTWISE_DROPOUT_H

#include "ops/elementwise/dropout.h"

/* m [count] <- the factors k / (1 - p) of the elements from `first` on. */
void dropout_factors(Real *m, const DropoutDraw *d, int64_t first, int64_t count);

#endif
