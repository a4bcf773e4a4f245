/* The CUDA side of a device, for kernel launchers. The core reaches CUDA through the device's
 * kernel table (ops/kernels.h) and memory functions (tensor/device.h) alone. */
#ifndef TAPEGRAD_TENSOR_CUDA_H
#define TAPEGRAD_TENSOR_CUDA_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda_runtime_api.h>

#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The stream of the current call's device. */
cudaStream_t cuda_stream(void);

enum { CUDA_MAX_DEVICES = 16 };

/* The current call's device index, below CUDA_MAX_DEVICES. */
int cuda_index(void);

/* Raises unless the result is cudaSuccess; the sentence names the kernel, the device, what and
 * CUDA's error string. */
void cuda_check(cudaError_t result, const char *what);

/* fill.cu: all n elements of out become value. */
void fill_cuda(TensorType type, Real *out, Real value, int64_t n);

/* Raises when the preceding launch failed. */
void cuda_launched(const char *kernel);

#ifdef __cplusplus
}
#endif
#endif
