/* The operations of ops/cuda/shared/copy.cuh on the host. A copy is made when its thread waits for
 * it; until then its destination is NaN, so that a missing wait shows. */
#ifndef CUDA_ON_HOST_COPY_H
#define CUDA_ON_HOST_COPY_H

#include "cuda_runtime.h"

void cuda_host_copy_async(void *shared, const void *from, int bytes, int there, const char *file,
                          int line);
void cuda_host_wait_for_copies(void);

template <int BYTES>
static inline void copy_async(void *shared, const void *from, int there,
                              const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    static_assert(BYTES == 4 || BYTES == 16, "ops/cuda/shared/copy.cuh copies 4 bytes or 16");
    cuda_host_copy_async(shared, from, BYTES, there, file, line);
}

static inline void wait_for_copies(void)
{
    cuda_host_wait_for_copies();
}

static inline void prefetch(const void *) {}

#endif
