/* cp.async: asynchronous copies from global to shared memory. They use no registers, and the block
 * computes while they run. */
#ifndef TAPEGRAD_OPS_SHARED_COPY_CUH
#define TAPEGRAD_OPS_SHARED_COPY_CUH

#include "tensor/cuda/kernel.cuh"

#ifdef TAPEGRAD_CUDA_ON_HOST
#include <copy_on_host.h>
#else

/* Starts a copy of BYTES (4 or 16): the first `valid` bytes come from global memory, the others are
 * zeros. Both addresses are aligned to BYTES. If `valid` is 0, `from` is not read and may be out of
 * bounds. */
template <int BYTES>
__device__ static inline void copy_async(void *shared, const void *from, int valid)
{
    const uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    if (BYTES == 16) /* .cg bypasses L1, which does not help data that is read once */
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                     "r"(valid)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid)
                     : "memory");
}

/* Waits for this thread's own copies. They are visible to other threads after the next barrier. */
__device__ static inline void wait_for_copies(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Prefetches the 32-byte sector of global memory that holds this address into L2. */
__device__ static inline void prefetch(const void *from)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

#endif
#endif
