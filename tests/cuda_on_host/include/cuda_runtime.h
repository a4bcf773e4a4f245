/* CUDA C++ for the host's compiler: its keywords and built-in functions are macros and functions of
 * the emulation in scheduler.cpp. A CUDA thread is a fibre; only one runs at any time. */
#ifndef CUDA_ON_HOST_RUNTIME_H
#define CUDA_ON_HOST_RUNTIME_H

#include "cuda_runtime_api.h"

#include <functional>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------------- language
 * Kernels are static, because the __shared__ statics of a template with external linkage would get
 * no redzones. __shared__ variables are statics in a section of their own, which is filled with NaN
 * before a block starts if a block has used it since the last time. */
#define __global__ static __attribute__((unused))
#define __device__
#define __host__
#define __constant__ static
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__                                                                                 \
    cuda_host_shared_used = true;                                                                  \
    static __attribute__((section("cuda.shared")))

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned width = 1, unsigned height = 1, unsigned depth = 1)
        : x(width), y(height), z(depth)
    {
    }
};

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
extern bool cuda_host_shared_used;
static const int warpSize = 32;

/* ------------------------------------------------------------------------------------ launching */
struct CudaHostLaunch {
    const char *name;
    const void *kernel;
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
    bool dependent; /* its threads must call wait_for_previous_kernel */
};

/* pointers: the kernel's arguments, NULL for those that are no pointers; the device's memory. */
void cuda_host_launch(const CudaHostLaunch &launch, const void *const *pointers, int count,
                      std::function<void()> thread);
void *cuda_host_dynamic_shared(void);

template <typename T> static inline const void *cuda_host_pointer(T *argument)
{
    return (const void *)argument;
}
template <typename T> static inline const void *cuda_host_pointer(const T &)
{
    return nullptr;
}

/* Called with the kernel's arguments, launches it; they convert as in a call of the kernel. */
template <typename... P> struct CudaHostKernel {
    void (*kernel)(P...);
    CudaHostLaunch launch;

    void operator()(P... arguments) const
    {
        const void *pointers[] = { nullptr, cuda_host_pointer(arguments)... };
        void (*call)(P...) = kernel;
        cuda_host_launch(launch, pointers + 1, (int)sizeof...(arguments),
                         [=] { call(arguments...); });
    }
};

template <typename... P>
static inline CudaHostKernel<P...> cuda_host_kernel(const char *name, void (*kernel)(P...),
                                                    dim3 grid, dim3 block, size_t shared_bytes,
                                                    cudaStream_t stream, bool dependent = false)
{
    return { kernel, { name, (const void *)kernel, grid, block, shared_bytes, stream, dependent } };
}

#define LAUNCH(kernel, grid, block, shared_bytes, ...)                                             \
    do {                                                                                           \
        cuda_host_kernel(#kernel, kernel, grid, block, shared_bytes, cuda_stream())(__VA_ARGS__);  \
        cuda_launched(#kernel);                                                                    \
    } while (0)
#define LAUNCH_DEPENDENT(kernel, grid, block, shared_bytes, ...)                                   \
    do {                                                                                           \
        cuda_host_kernel(#kernel, kernel, grid, block, shared_bytes, cuda_stream(),                \
                         true)(__VA_ARGS__);                                                       \
        cuda_launched(#kernel);                                                                    \
    } while (0)
#define DYNAMIC_SHARED(T, name) T *const name = (T *)cuda_host_dynamic_shared()

/* The runtime's overloads for typed pointers. */
template <typename T> static inline cudaError_t cudaMalloc(T **memory, size_t size)
{
    return cudaMalloc((void **)memory, size);
}
template <typename T> static inline cudaError_t cudaMallocHost(T **memory, size_t size)
{
    return cudaMallocHost((void **)memory, size);
}
template <typename... P>
static inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute,
                                               int value)
{
    return cudaFuncSetAttribute((const void *)kernel, attribute, value);
}

/* Limited by an H100's shared memory, and by its registers with 168 per thread. */
template <typename... P>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void (*)(P...),
                                                                        int threads, size_t bytes)
{
    const size_t by_shared = (228 << 10) / (bytes + (1 << 10));
    const int by_registers = 65536 / (threads * 168);
    *blocks = by_registers < (int)by_shared ? by_registers : (int)by_shared;
    return cudaSuccess;
}

/* ------------------------------------------------------------------------ barriers, warp functions
 * Each passes its source position, so that threads that wait at different calls are detected. */
struct CudaHostPlace {
    const char *file, *function;
    int line;
};

#define CUDA_HOST_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

enum CudaHostBlockOperation {
    CUDA_HOST_SYNCTHREADS,
    CUDA_HOST_SYNCTHREADS_COUNT,
    CUDA_HOST_SYNCTHREADS_AND,
    CUDA_HOST_SYNCTHREADS_OR
};

/* Waits for all threads of the block; returns the number of those whose predicate is true. */
int cuda_host_block_barrier(CudaHostBlockOperation operation, bool predicate, const char *file,
                            int line);

/* Waits for all lanes of the mask; returns their values, 8 bytes per lane, valid until this lane's
 * next call. */
const uint64_t *cuda_host_warp_meet(const char *operation, unsigned mask, uint64_t value,
                                    const char *file, int line);

/* Checks and returns the lane that a shuffle reads. */
int cuda_host_shuffle_source(unsigned mask, int source, const char *file, int line);

static inline void __syncthreads(CUDA_HOST_HERE)
{
    cuda_host_block_barrier(CUDA_HOST_SYNCTHREADS, true, file, line);
}
static inline int __syncthreads_count(int predicate, CUDA_HOST_HERE)
{
    return cuda_host_block_barrier(CUDA_HOST_SYNCTHREADS_COUNT, predicate != 0, file, line);
}
static inline int __syncthreads_or(int predicate, CUDA_HOST_HERE)
{
    return cuda_host_block_barrier(CUDA_HOST_SYNCTHREADS_OR, predicate != 0, file, line) > 0;
}
static inline int __syncthreads_and(int predicate, CUDA_HOST_HERE)
{
    return cuda_host_block_barrier(CUDA_HOST_SYNCTHREADS_AND, predicate == 0, file, line) == 0;
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, CUDA_HOST_HERE)
{
    cuda_host_warp_meet("__syncwarp", mask, 0, file, line);
}

static inline int cuda_host_lane(void)
{
    return (int)((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31);
}

template <typename T>
static inline T cuda_host_shuffle(const char *operation, unsigned mask, T value, int source,
                                  const char *file, int line)
{
    static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffle moves at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    const uint64_t *values = cuda_host_warp_meet(operation, mask, bits, file, line);
    memcpy(&value, &values[cuda_host_shuffle_source(mask, source, file, line)], sizeof value);
    return value;
}

template <typename T>
static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, CUDA_HOST_HERE)
{
    const int first = cuda_host_lane() & ~(width - 1);
    return cuda_host_shuffle("__shfl_sync", mask, value, first + (source & (width - 1)), file,
                             line);
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, CUDA_HOST_HERE)
{
    const int lane = cuda_host_lane(), first = lane & ~(width - 1);
    const int source = lane - (int)by;
    return cuda_host_shuffle("__shfl_up_sync", mask, value, source < first ? lane : source, file,
                             line);
}
template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32,
                                 CUDA_HOST_HERE)
{
    const int lane = cuda_host_lane(), last = lane | (width - 1);
    const int source = lane + (int)by;
    return cuda_host_shuffle("__shfl_down_sync", mask, value, source > last ? lane : source, file,
                             line);
}
template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32, CUDA_HOST_HERE)
{
    const int lane = cuda_host_lane(), last = lane | (width - 1);
    const int source = lane ^ with;
    return cuda_host_shuffle("__shfl_xor_sync", mask, value, source > last ? lane : source, file,
                             line);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate, CUDA_HOST_HERE)
{
    const uint64_t *values = cuda_host_warp_meet("__ballot_sync", mask, predicate != 0, file, line);
    unsigned result = 0;
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && values[lane])
            result |= 1u << lane;
    return result;
}
static inline int __any_sync(unsigned mask, int predicate, CUDA_HOST_HERE)
{
    return __ballot_sync(mask, predicate, file, line) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, CUDA_HOST_HERE)
{
    return __ballot_sync(mask, predicate, file, line) == mask;
}

/* An instruction of a whole warp: once all lanes are here, the last one calls work with the address
 * of each lane's operands, where it leaves the results; then the lanes continue. */
typedef void CudaHostWarpWork(const uint64_t *operands);
void cuda_host_warp_together(const char *operation, void *operands, CudaHostWarpWork *work,
                             const char *file, int line);

/* As in tensor/cuda/kernel.cuh. Every thread of a dependent launch must wait. */
void wait_for_previous_kernel(CUDA_HOST_HERE);
static inline void let_next_kernel_start(void) {}

static inline void __threadfence(void) {}
static inline void __threadfence_block(void) {}

#undef CUDA_HOST_HERE

/* -------------------------------------------------------------------------------------- vectors */
#define CUDA_HOST_VECTOR2(name, T, bytes)                                                          \
    struct __align__(bytes) name                                                                   \
    {                                                                                              \
        T x, y;                                                                                    \
    };                                                                                             \
    static inline name make_##name(T x, T y)                                                       \
    {                                                                                              \
        return { x, y };                                                                           \
    }
#define CUDA_HOST_VECTOR4(name, T, bytes)                                                          \
    struct __align__(bytes) name                                                                   \
    {                                                                                              \
        T x, y, z, w;                                                                              \
    };                                                                                             \
    static inline name make_##name(T x, T y, T z, T w)                                             \
    {                                                                                              \
        return { x, y, z, w };                                                                     \
    }
CUDA_HOST_VECTOR2(float2, float, 8)
CUDA_HOST_VECTOR4(float4, float, 16)
CUDA_HOST_VECTOR2(double2, double, 16)
CUDA_HOST_VECTOR4(double4, double, 16)
CUDA_HOST_VECTOR2(int2, int, 8)
CUDA_HOST_VECTOR4(int4, int, 16)
CUDA_HOST_VECTOR2(uint2, unsigned, 8)
CUDA_HOST_VECTOR4(uint4, unsigned, 16)
CUDA_HOST_VECTOR2(ushort2, unsigned short, 4)
CUDA_HOST_VECTOR4(ushort4, unsigned short, 8)
#undef CUDA_HOST_VECTOR2
#undef CUDA_HOST_VECTOR4

/* ----------------------------------------------------------------------- memory, bits, integers */
template <typename T> static inline T __ldg(const T *x)
{
    return *x;
}
template <typename T> static inline T __ldcs(const T *x)
{
    return *x;
}
template <typename T> static inline T __ldcg(const T *x)
{
    return *x;
}
template <typename T> static inline void __stcs(T *out, T value)
{
    *out = value;
}
template <typename T> static inline void __stcg(T *out, T value)
{
    *out = value;
}

/* Only of integers, whose sums do not depend on the order. */
#define CUDA_HOST_ATOMIC(name, T, expression)                                                      \
    static inline T name(T *at, T value)                                                           \
    {                                                                                              \
        const T old = *at;                                                                         \
        *at = (expression);                                                                        \
        return old;                                                                                \
    }
#define CUDA_HOST_ATOMICS(T)                                                                       \
    CUDA_HOST_ATOMIC(atomicAdd, T, old + value)                                                    \
    CUDA_HOST_ATOMIC(atomicMax, T, old > value ? old : value)                                      \
    CUDA_HOST_ATOMIC(atomicMin, T, old < value ? old : value)                                      \
    CUDA_HOST_ATOMIC(atomicOr, T, old | value)                                                     \
    CUDA_HOST_ATOMIC(atomicAnd, T, old &value)                                                     \
    CUDA_HOST_ATOMIC(atomicExch, T, value)                                                         \
    static inline T atomicCAS(T *at, T expected, T value)                                          \
    {                                                                                              \
        const T old = *at;                                                                         \
        *at = old == expected ? value : old;                                                       \
        return old;                                                                                \
    }
CUDA_HOST_ATOMICS(int)
CUDA_HOST_ATOMICS(unsigned)
CUDA_HOST_ATOMICS(unsigned long long)
#undef CUDA_HOST_ATOMIC
#undef CUDA_HOST_ATOMICS

#define CUDA_HOST_MINMAX(T)                                                                        \
    static inline T min(T a, T b)                                                                  \
    {                                                                                              \
        return a < b ? a : b;                                                                      \
    }                                                                                              \
    static inline T max(T a, T b)                                                                  \
    {                                                                                              \
        return a > b ? a : b;                                                                      \
    }
CUDA_HOST_MINMAX(int)
CUDA_HOST_MINMAX(unsigned)
CUDA_HOST_MINMAX(long)
CUDA_HOST_MINMAX(unsigned long)
CUDA_HOST_MINMAX(long long)
CUDA_HOST_MINMAX(unsigned long long)
#undef CUDA_HOST_MINMAX
static inline float min(float a, float b)
{
    return fminf(a, b);
}
static inline float max(float a, float b)
{
    return fmaxf(a, b);
}
static inline double min(double a, double b)
{
    return fmin(a, b);
}
static inline double max(double a, double b)
{
    return fmax(a, b);
}

template <typename To, typename From> static inline To cuda_host_bits(From value)
{
    static_assert(sizeof(To) == sizeof(From), "bits are kept as they are");
    To result;
    memcpy(&result, &value, sizeof result);
    return result;
}
static inline unsigned __float_as_uint(float value)
{
    return cuda_host_bits<unsigned>(value);
}
static inline int __float_as_int(float value)
{
    return cuda_host_bits<int>(value);
}
static inline float __uint_as_float(unsigned value)
{
    return cuda_host_bits<float>(value);
}
static inline float __int_as_float(int value)
{
    return cuda_host_bits<float>(value);
}
/* As cvt.rn.bf16.f32: to nearest, ties to even; every NaN becomes 0x7fff. */
static inline uint16_t round_to_bf16(float value)
{
    const uint32_t bits = cuda_host_bits<uint32_t>(value);
    return (uint16_t)((value != value ? 0x7fffffffu : bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
static inline long long __double_as_longlong(double value)
{
    return cuda_host_bits<long long>(value);
}
static inline double __longlong_as_double(long long value)
{
    return cuda_host_bits<double>(value);
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
static inline int __popc(unsigned value)
{
    return __builtin_popcount(value);
}
static inline int __ffs(int value)
{
    return __builtin_ffs(value);
}
static inline int __clz(int value)
{
    return value ? __builtin_clz((unsigned)value) : 32;
}

/* ------------------------------------------------------------------------------------- mathematics
 * Macros where glibc has functions of that name. */
static inline double normcdf(double x)
{
    return erfc(x * -0.70710678118654752) / 2;
}
static inline float normcdf(float x)
{
    return (float)normcdf((double)x);
}
static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
static inline float rsqrt(float x)
{
    return 1.0f / sqrtf(x);
}
static inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}
static inline float __fdividef(float a, float b)
{
    return a / b;
}
static inline float __frcp_rn(float x)
{
    return 1.0f / x;
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)

#endif
