/* conv2d in two or more groups, on CUDA. */
#ifndef TAPEGRAD_OPS_CUDA_CONVOLUTION_GROUPED_H
#define TAPEGRAD_OPS_CUDA_CONVOLUTION_GROUPED_H

#include "autograd/tape.h"
#include "ops/convolution/convolution.h"

C_FUNCTION void grouped_forward_cuda(TensorType type, Real *out, const Real *x, const Real *weight,
                                     const Real *bias, Convolution c);
C_FUNCTION void grouped_backward_x_cuda(TensorType type, Gradient dx, const Real *dout,
                                        const Real *weight, Convolution c);
C_FUNCTION void grouped_backward_weight_cuda(TensorType type, Gradient dweight, const Real *dout,
                                             const Real *x, Convolution c);

#endif
