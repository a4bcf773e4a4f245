/* conv2d on the CPU, by products of matrices (im2col.c) or by oneDNN (onednn.c). */
#ifndef TAPEGRAD_IMAGES_CPU_CONV2D_H
#define TAPEGRAD_IMAGES_CPU_CONV2D_H

#include "ext/images/kernels.h"

extern const ConvolutionKernels convolution_im2col;
#ifdef TAPEGRAD_ONEDNN
extern const ConvolutionKernels convolution_onednn;
extern const ConvolutionKernels convolution_onednn_bf16; /* where the device has bf16 */
#endif

#endif
