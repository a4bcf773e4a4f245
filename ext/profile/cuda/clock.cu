/* The clock of a CUDA device: an event per stamp, recorded on the stream on which kernels run. */
#include "ext/profile/kernels.h"
#include "tensor/cuda/kernel.cuh"

#include <stdlib.h>

typedef struct Events {
    int count;
    cudaEvent_t event[];
} Events;

static void close_cuda(void *stamps)
{
    Events *events = (Events *)stamps;
    for (int i = 0; i < events->count; i++)
        cudaEventDestroy(events->event[i]);
    free(events);
}

static void *open_cuda(int count)
{
    Events *events = (Events *)malloc(sizeof *events + (size_t)count * sizeof(cudaEvent_t));
    if (!events)
        return NULL;
    for (events->count = 0; events->count < count; events->count++)
        if (cudaEventCreate(&events->event[events->count]) != cudaSuccess) {
            close_cuda(events);
            return NULL;
        }
    return events;
}

static void stamp_cuda(void *stamps, int i)
{
    cuda_check(cudaEventRecord(((Events *)stamps)->event[i], cuda_stream()), "cudaEventRecord");
}

static double elapsed_cuda(const void *stamps, int i)
{
    const Events *events = (const Events *)stamps;
    float milliseconds;
    cuda_check(cudaEventSynchronize(events->event[i + 1]), "cudaEventSynchronize");
    cuda_check(cudaEventElapsedTime(&milliseconds, events->event[i], events->event[i + 1]),
               "cudaEventElapsedTime");
    return (double)milliseconds;
}

const ProfileClock profile_clock_cuda = { open_cuda, close_cuda, stamp_cuda, elapsed_cuda };
