/* softmax and log_softmax of one row of C elements, on the calling thread: g = dL/dout. */
#ifndef TAPEGRAD_OPS_ROWS_SOFTMAX_H
#define TAPEGRAD_OPS_ROWS_SOFTMAX_H

#include "ops/shared/internal.h"

void softmax_row(Real *out, const Real *x, int64_t C);
void softmax_row_backward(Gradient dx, const Real *g, const Real *out, int64_t C);
void log_softmax_row(Real *out, const Real *x, int64_t C);
void log_softmax_row_backward(Gradient dx, const Real *g, const Real *out, int64_t C);

#endif
