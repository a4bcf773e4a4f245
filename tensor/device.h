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

/* cuda.c: the CUDA device of this index, opened on first use; raises when there is none. */
Device *cuda_open(const char *name, int index);

/* The number of CUDA devices: 0 without a driver or a GPU. */
int cuda_count(void);

#endif
