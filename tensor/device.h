/* A device and its caching pool, as device.c and cuda.c see it. */
#ifndef TAPEGRAD_TENSOR_DEVICE_H
#define TAPEGRAD_TENSOR_DEVICE_H

#include "tensor/internal.h"

#include <pthread.h>

enum { CLASSES_PER_DOUBLING = 8, CLASS_COUNT = 64 * CLASSES_PER_DOUBLING };

/* Free blocks, a list by address for each class of sizes. */
typedef struct FreeBlocks {
    Block *first[CLASS_COUNT];
} FreeBlocks;

struct Device {
    char name[24];
    struct Cuda *cuda; /* NULL on the CPU */
    FreeBlocks cached;
    Capture *capture; /* the one that is open, or NULL */
    DeviceMemory memory;
    pthread_mutex_t lock;
};

/* cuda.c: a captured graph. */
typedef struct Graph {
    void *executable; /* NULL: CUDA refuses it, */
    const char *reason;
    int64_t kernels; /* how many it launches */
} Graph;

/* cuda.c: the index-th CUDA device; raises when there is none. Opened once. */
Device *cuda_open(const char *name, int index);

/* How many there are: 0 without a driver or a GPU. */
int cuda_count(void);

#endif
