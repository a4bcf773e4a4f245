/* Host memory for the CPU backend: large blocks use huge pages, so that streaming through them
 * rarely misses the TLB. */
#include "tensor/device.h"

#ifdef TAPEGRAD_CPU_LINUX

#include <stdlib.h>
#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20 };

void *allocate_on_host(Device *device, size_t bytes)
{
    (void)device;
    void *data = NULL;
    if (posix_memalign(&data, bytes >= HUGE_PAGE ? HUGE_PAGE : BLOCK_ALIGNMENT, bytes) != 0)
        return NULL;
#ifdef MADV_HUGEPAGE /* Linux */
    if (bytes >= HUGE_PAGE)
        madvise(data, bytes, MADV_HUGEPAGE);
#endif
    return data;
}

void free_on_host(Device *device, void *data)
{
    (void)device;
    free(data);
}
#endif
