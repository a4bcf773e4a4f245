/* conv2d in two or more groups, on the CPU. */
#ifndef TAPEGRAD_OPS_CPU_CONVOLUTION_GROUPED_H
#define TAPEGRAD_OPS_CPU_CONVOLUTION_GROUPED_H

#include "autograd/tape.h"
#include "ops/convolution/convolution.h"

void grouped_forward(Real *out, const Real *x, const Real *weight, const Real *bias,
                     const Convolution *c);
void grouped_backward_x(Gradient dx, const Real *dout, const Real *weight, const Convolution *c);
void grouped_backward_weight(Gradient dweight, const Real *dout, const Real *x,
                             const Convolution *c);

#endif
