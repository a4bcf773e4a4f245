/* A device and its caching pool, shared by device.c and cuda.c. */
#ifndef TAPEGRAD_TENSOR_DEVICE_H
#define TAPEGRAD_TENSOR_DEVICE_H

#include "tensor/internal.h"

#include <pthread.h>

enum { CLASSES_PER_DOUBLING = 8, CLASS_COUNT = 64 * CLASSES_PER_DOUBLING };

/* Free blocks: one list per size class, sorted by address. */
typedef struct FreeBlocks {
    Block *first[CLASS_COUNT];
} FreeBlocks;

struct Device {
    char name[24];
    bool plain;        /* computes with the plain kernels */
    struct Cuda *cuda; /* NULL on the CPU */
    FreeBlocks cached;
    Capture *capture; /* the open one, or NULL */
    DeviceMemory memory;
    pthread_mutex_t lock;
};

/* cuda.c: a captured graph. */
typedef struct Graph {
    void *executable; /* NULL: CUDA rejects the graph */
    const char *reason;
    int64_t kernels; /* kernel launches per replay */
} Graph;

/* cuda.c: memory, copies and captures. block_free, device_left, capture_end and graph_free raise
 * nothing; after a fault the next call that checks CUDA's results raises. */
CUDA_FUNCTION(void *, block_allocate, size_t bytes);
CUDA_FUNCTION(void, block_free, void *data);
CUDA_FUNCTION(size_t, device_left, void);
CUDA_FUNCTION(void, copy_in, Device *device, void *to, const void *host, size_t bytes);
CUDA_FUNCTION(void, copy_out, Device *device, void *host, const void *from, size_t bytes);
CUDA_FUNCTION(void, copy, void *to, const void *from, size_t bytes);
CUDA_FUNCTION(void, zero, void *to, size_t bytes);
CUDA_FUNCTION(void, wait, Device *device);
CUDA_FUNCTION(void, device_enter, Device *device);
CUDA_FUNCTION(void, capture_begin, Device *device);
CUDA_FUNCTION(Graph, capture_end, Device *device);
CUDA_FUNCTION(void, graph_launch, void *executable);
CUDA_FUNCTION(void, graph_free, void *executable);

OLD_KERNEL(void, fill, Real *out, Real value, int64_t n);

/* cuda.c: the CUDA device of this index, opened on first use; raises when there is none. */
Device *cuda_open(const char *name, int index);

/* The number of CUDA devices: 0 without a driver or a GPU. */
int cuda_count(void);

#endif
