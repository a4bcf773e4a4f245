/* Copies from global into shared memory that go on by themselves, so that a block computes meanwhile,
 * and need no registers. */
#ifndef TAPEGRAD_TENSOR_COPY_CUH
#define TAPEGRAD_TENSOR_COPY_CUH

#include "tensor/kernel.cuh"

#ifdef TAPEGRAD_CUDA_ON_HOST
#include <copy_on_host.h>
#else

/* Begins to copy BYTES, 4 or 16, of which the first `there` come from global memory, the others are
 * zeros. Both places are aligned to BYTES. Where `there` is 0 nothing is read: `from` may lie outside. */
template <int BYTES>
__device__ static inline void copy_async(void *shared, const void *from, int there)
{
    const uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    if (BYTES == 16) /* past the first cache, which keeps nothing that is read once */
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                     "r"(there)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there)
                     : "memory");
}

/* Until the thread's own copies are there, for itself: others see them after a barrier that it comes
 * to later. */
__device__ static inline void wait_for_copies(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Begins to bring the 32 bytes of global memory around this place into the second cache. */
__device__ static inline void prefetch(const void *from)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

#endif
#endif
