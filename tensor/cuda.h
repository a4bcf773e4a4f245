/* The CUDA side of a device. The rest of the library reaches it through DEVICE_CALL alone; kernels'
 * launchers, which DEVICE_CALL calls, find the stream to launch on here. */
#ifndef TAPEGRAD_TENSOR_CUDA_H
#define TAPEGRAD_TENSOR_CUDA_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The stream of the device whose call this thread is in. */
cudaStream_t cuda_stream(void);

/* Whether the call's tensors store bf16 and not Real. */
bool cuda_stores_bf16(void);

enum { CUDA_MOST_DEVICES = 16 };

/* The device's index, below CUDA_MOST_DEVICES, and the name of what is called. */
int cuda_index(void);
const char *cuda_operation(void);

/* Raises "operation: what: CUDA's own words" unless the result is success. */
void cuda_check(cudaError_t result, const char *what);

/* After a launch: raises when it failed. */
void cuda_launched(const char *kernel);

#ifdef __cplusplus
}
#endif
#endif
