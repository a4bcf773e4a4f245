/* Linear layers on CUDA: the launcher of linear.cu that linear.c calls with a workspace. */
#ifndef TAPEGRAD_OPS_CUDA_PRODUCTS_LINEAR_H
#define TAPEGRAD_OPS_CUDA_PRODUCTS_LINEAR_H

#include "ops/elementwise/activation.h"
#include "ops/products/linear.h"
#include "tensor/kernel.h"

C_FUNCTION void launch_linear_activate_backward(TensorType type, Real *h, Real *partial,
                                                const Real *g, const Real *y, Activation activation,
                                                int64_t R, int64_t O);

#endif
