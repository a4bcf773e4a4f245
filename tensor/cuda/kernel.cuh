/* Shared by all CUDA kernels: launches, the dtypes Real and bf16, grid loops, block reductions.
 *
 * Kernels are templates over the dtype T of activations and their gradients, Real or Bfloat16; they
 * compute in Real. Parameters, statistics and losses are always Real. The launcher of
 * KERNEL(exp_forward, (Real *out, const Real *x, int64_t n)) in ops/kernel_list.h takes the dtype
 * and Real pointers, which BY_STORAGE casts:
 *
 *     extern "C" void exp_forward_cuda(TensorType type, Real *out, const Real *x, int64_t n)
 *     {
 *         BY_STORAGE(type, T, LAUNCH(exp_forward<T>, blocks_for(n), THREADS, 0, (T *)out,
 *                                    (const T *)x, n));
 *     }
 */
#ifndef TAPEGRAD_TENSOR_KERNEL_CUH
#define TAPEGRAD_TENSOR_KERNEL_CUH

#include <atomic>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#include "tensor/cuda/cuda.h"
#include "tensor/kernel.h"
#include "tensor/philox.h"

/* LAUNCH(kernel, grid, block, shared_bytes, arguments...) launches on the call's stream and checks
 * the launch. A template with several arguments needs parentheses: LAUNCH((kernel<T, 64>), ...).
 * DYNAMIC_SHARED(T, name): the launch's shared_bytes as an array of T. */
#ifndef TAPEGRAD_CUDA_ON_HOST
#define LAUNCH(kernel, grid, block, shared_bytes, ...)                                             \
    do {                                                                                           \
        kernel<<<grid, block, shared_bytes, cuda_stream()>>>(__VA_ARGS__);                         \
        cuda_launched(#kernel);                                                                    \
    } while (0)
#define DYNAMIC_SHARED(T, name)                                                                    \
    extern __shared__ __align__(16) unsigned char dynamic_shared_bytes[];                          \
    T *const name = (T *)dynamic_shared_bytes
#endif

/* ------------------------------------------------------------------- programmatic dependent launch
 * LAUNCH_DEPENDENT is LAUNCH for a kernel that calls wait_for_previous_kernel. With TAPEGRAD_PDL
 * (make PDL=yes; compute capability 9.0 or later) its blocks may start before the previous kernel
 * on the stream has ended, in a captured graph too: the launch latency of a kernel and its first
 * loads then overlap with the end of the previous kernel. The rule:
 *
 *   Every thread of such a kernel calls wait_for_previous_kernel() once before it writes global
 *   memory or reads anything that a kernel has written since, and including, the last plain LAUNCH.
 *
 * The wait returns when the previous kernel has completed and its writes are visible. Earlier
 * kernels have completed by then only because the previous kernel waited for its own predecessor;
 * therefore a thread that needs no result waits too. A kernel launched by LAUNCH starts after all
 * earlier kernels have completed. Start a sequence of dependent kernels with one: weights and other
 * memory that the sequence does not write may then be loaded before the wait.
 *
 * let_next_kernel_start(): the next kernel, if dependent, may start once all blocks of this kernel
 * have called it or have ended. It makes no result visible, so it may be the first statement. */
#ifndef TAPEGRAD_CUDA_ON_HOST
#ifdef TAPEGRAD_PDL
template <typename... P, typename... A>
static void launch_dependent(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                             A... arguments)
{
    static std::atomic<int> version[CUDA_MAX_DEVICES]; /* of the code; one for all kernels */
    if (version[cuda_index()] == 0) {
        cudaFuncAttributes code;
        cuda_check(cudaFuncGetAttributes(&code, kernel), "cudaFuncGetAttributes");
        version[cuda_index()] = code.ptxVersion;
    }
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = cuda_stream();
    config.attrs = &attribute;
    config.numAttrs = version[cuda_index()] >= 90; /* older code lacks the wait instruction */
    cudaLaunchKernelEx(&config, kernel, arguments...);
}

#define LAUNCH_DEPENDENT(kernel, grid, block, shared_bytes, ...)                                   \
    do {                                                                                           \
        launch_dependent(kernel, grid, block, shared_bytes, __VA_ARGS__);                          \
        cuda_launched(#kernel);                                                                    \
    } while (0)
#else
#define LAUNCH_DEPENDENT LAUNCH
#endif

#if defined(TAPEGRAD_PDL) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define GRID_DEPENDENCY(instruction) asm volatile("griddepcontrol." instruction ";" ::: "memory")
#else
#define GRID_DEPENDENCY(instruction) (void)0
#endif

__device__ static inline void wait_for_previous_kernel(void)
{
    GRID_DEPENDENCY("wait");
}

__device__ static inline void let_next_kernel_start(void)
{
    GRID_DEPENDENCY("launch_dependents");
}

/* Like bf16_of in tensor/kernel.h, but every NaN becomes 0x7fff. */
__device__ static inline uint16_t round_to_bf16(float value)
{
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif

enum { THREADS = 256, WARP = 32 };

/* -------------------------------------------------------------------------------------- storage */

struct Bfloat16 {
    uint16_t bits;
};

__device__ static inline Real load(const Real *x)
{
    return *x;
}
__device__ static inline void store(Real *out, Real value)
{
    *out = value;
}

__device__ static inline Real load(const Bfloat16 *x)
{
    return real_of_bf16(x->bits);
}
__device__ static inline void store(Bfloat16 *out, Real value)
{
    out->bits = round_to_bf16((float)value);
}

/* A contribution to a gradient; the old value is read only if the contribution adds to it. */
template <typename T> __device__ static inline void contribute(T *dx, bool accumulate, Real value)
{
    store(dx, accumulate ? load(dx) + value : value);
}

/* Runs the statement with T as the dtype. */
#define BY_STORAGE(type, T, ...)                                                                   \
    do {                                                                                           \
        if ((type) == TENSOR_BF16) {                                                               \
            typedef Bfloat16 T;                                                                    \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            typedef Real T;                                                                        \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

/* ---------------------------------------------------------------------------------------- loops */

/* A grid-stride loop: a thread processes one element per gridDim.x * blockDim.x elements. */
#define GRID_FOR(i, n)                                                                             \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n);                      \
         i += (int64_t)gridDim.x * blockDim.x)

/* The number of blocks for `items`, `each` per block; GRID_FOR covers items beyond the limit. */
static inline unsigned blocks_for(int64_t items, int64_t each = THREADS)
{
    const int64_t blocks = (items + each - 1) / each, max_blocks = 4096;
    return (unsigned)(blocks < 1 ? 1 : blocks < max_blocks ? blocks : max_blocks);
}

/* -------------------------------------------------------------------------------------------- sums
 * Warp shuffle reductions; their order depends on the block's size alone. Every thread of the block
 * must call, and every thread gets the result; blockDim.x is a multiple of 32, at most 1024. */

template <typename T> __device__ static inline T warp_sum(T value)
{
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

/* The maximum, ignoring NaN. */
__device__ static inline Real warp_max(Real value)
{
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        Real other = __shfl_xor_sync(0xffffffffu, value, offset);
        value = other > value || value != value ? other : value;
    }
    return value;
}

template <typename T> __device__ static inline T block_sum(T value)
{
    __shared__ T partial_sums[WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    value = warp_sum(value);
    __syncthreads(); /* an earlier call's partial sums have been read */
    if (lane == 0)
        partial_sums[warp] = value;
    __syncthreads();
    return warp_sum(lane < warps ? partial_sums[lane] : (T)0);
}

/* A launcher's kernel of one dtype, which is the launcher's first argument. */
template <auto launcher, TensorType type, typename... P> static void call(P... arguments)
{
    launcher(type, arguments...);
}

#endif
