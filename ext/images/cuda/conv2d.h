/* Launchers that conv2d on CUDA consists of; the first argument is the activations' dtype. */
#ifndef TAPEGRAD_IMAGES_CUDA_CONV2D_H
#define TAPEGRAD_IMAGES_CUDA_CONV2D_H

#include "ext/images/kernels.h"

/* conv2d.c */
C_FUNCTION void conv2d_forward_cuda(TensorType type, Real *out, const Real *x, const Real *weight,
                                    const Real *bias, Convolution c);
C_FUNCTION void conv2d_backward_x_cuda(TensorType type, Gradient dx, const Real *dout,
                                       const Real *weight, Convolution c);
C_FUNCTION void conv2d_backward_weight_cuda(TensorType type, Gradient dweight, const Real *dout,
                                            const Real *x, Convolution c);
/* grouped.cu: in two or more groups */
C_FUNCTION void grouped_forward_cuda(TensorType type, Real *out, const Real *x, const Real *weight,
                                     const Real *bias, Convolution c);
C_FUNCTION void grouped_backward_x_cuda(TensorType type, Gradient dx, const Real *dout,
                                        const Real *weight, Convolution c);
C_FUNCTION void grouped_backward_weight_cuda(TensorType type, Gradient dweight, const Real *dout,
                                             const Real *x, Convolution c);
/* unfold.cu */
C_FUNCTION void unfold_cuda_windows(TensorType type, Real *out, const Real *x, Windows u);
C_FUNCTION void fold_cuda(TensorType type, Gradient dx, const Real *dout, Windows u);

#endif
