/* conv2d on the CPU, by oneDNN (onednn.c) or without it (im2col.c). type is the activations', bf16
 * only where the device has products of it. */
#ifndef TAPEGRAD_IMAGES_CPU_CONV2D_H
#define TAPEGRAD_IMAGES_CPU_CONV2D_H

#include "ext/images/kernels.h"

void conv2d_forward_as(TensorType type, Real *out, const Real *x, const Real *weight,
                       const Real *bias, Convolution c);
void conv2d_backward_x_as(TensorType type, Gradient dx, const Real *dout, const Real *weight,
                          Convolution c);
void conv2d_backward_weight_as(TensorType type, Gradient dweight, const Real *dout, const Real *x,
                               Convolution c);

#endif
