/* The declarations of kernels, which the C and the CUDA sources include: a function that differs
 * from its declaration does not compile. KERNEL_CALL and DEVICE_CALL in tensor/internal.h call
 * them.
 *
 *     KERNEL(void, softmax_forward, Real *out, const Real *x, int64_t R, int64_t C);
 *
 * declares softmax_forward_cpu with these parameters, and softmax_forward_cuda with the dtype of
 * the activations, Real or bf16, before them: the CPU has Real alone. DEVICE_FUNCTION is the same
 * for a function without activations, such as an optimizer's step, and both then have the same
 * parameters; CUDA_FUNCTION declares what only CUDA has. */
#ifndef TAPEGRAD_TENSOR_KERNEL_H
#define TAPEGRAD_TENSOR_KERNEL_H

#include "tensor/tensor.h"

#ifdef __cplusplus
#define C_FUNCTION extern "C"
#else
#define C_FUNCTION
#endif

#define CUDA_FUNCTION(result, name, ...) C_FUNCTION result name##_cuda(__VA_ARGS__)
#define DEVICE_FUNCTION(result, name, ...)                                                         \
    C_FUNCTION result name##_cpu(__VA_ARGS__);                                                     \
    CUDA_FUNCTION(result, name, __VA_ARGS__)
#define KERNEL(result, name, ...)                                                                  \
    C_FUNCTION result name##_cpu(__VA_ARGS__);                                                     \
    CUDA_FUNCTION(result, name, TensorType type, __VA_ARGS__)

#endif
