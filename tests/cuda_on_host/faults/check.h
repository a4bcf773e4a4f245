/* Shared by the emulation's tests. */
#ifndef CUDA_ON_HOST_FAULTS_CHECK_H
#define CUDA_ON_HOST_FAULTS_CHECK_H

#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <vector>

static int failures;

/* Reports a condition that is false, the first five times; the test continues. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            if (failures++ < 5)                                                                    \
                printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                     \
        }                                                                                          \
    } while (0)

/* The process's exit status. */
static inline int checked(void)
{
    return failures > 0;
}

static inline cudaStream_t cuda_stream(void)
{
    static cudaStream_t stream;
    if (!stream)
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    return stream;
}

static inline void cuda_launched(const char *kernel)
{
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) {
        printf("%s: %s\n", kernel, cudaGetErrorString(error));
        failures++;
    }
}

template <typename T> static inline T *device_array(size_t count)
{
    T *array = nullptr;
    CHECK(cudaMalloc(&array, count * sizeof *array) == cudaSuccess);
    return array;
}

template <typename T> static inline void copy_in(T *to, const T *from, size_t count)
{
    CHECK(cudaMemcpyAsync(to, from, count * sizeof *to, cudaMemcpyHostToDevice, cuda_stream()) ==
          cudaSuccess);
}

template <typename T> static inline std::vector<T> copy_out(const T *from, size_t count)
{
    std::vector<T> values(count);
    CHECK(cudaMemcpyAsync(values.data(), from, count * sizeof *from, cudaMemcpyDeviceToHost,
                          cuda_stream()) == cudaSuccess);
    CHECK(cudaStreamSynchronize(cuda_stream()) == cudaSuccess);
    return values;
}

#endif
