/* A device and its caching pool, for the files of tensor/ alone. */
#ifndef TAPEGRAD_TENSOR_DEVICE_H
#define TAPEGRAD_TENSOR_DEVICE_H

#include "tensor/internal.h"

#include "tensor/lock.h"

enum { BLOCK_ALIGNMENT = 64 }; /* of blocks: a cache line */
enum { CLASSES_PER_DOUBLING = 8, CLASS_COUNT = 64 * CLASSES_PER_DOUBLING };

/* Free blocks: one heap per size class, the lowest address first. */
typedef struct FreeBlocks {
    Block *first[CLASS_COUNT];
} FreeBlocks;

/* What a device does with its memory. NULL: the host has nothing to do, or cannot. free and
 * available raise nothing; after a fault the next call that checks CUDA's results raises. */
typedef struct DeviceFunctions {
    void (*enter)(Device *device);                   /* makes it the thread's device for kernels */
    void *(*allocate)(Device *device, size_t bytes); /* NULL: memory is exhausted */
    void (*free)(Device *device, void *data);
    size_t (*available)(const Device *device); /* bytes that are free */
    void (*copy_in)(Device *device, void *to, const void *host, size_t bytes);
    void (*copy_out)(Device *device, void *host, const void *from, size_t bytes);
    void (*copy)(Device *device, void *to, const void *from, size_t bytes);
    void (*zero)(Device *device, void *to, size_t bytes);
    void (*fill)(Tensor *tensor, Real value);
    void (*read_bf16)(const Tensor *tensor, Real *host); /* a tensor of TENSOR_BF16 */
    void (*write_bf16)(Tensor *tensor, const Real *host);
    bool (*has_bf16)(void);       /* whether it multiplies bf16 by its instructions */
    void (*wait)(Device *device); /* until all kernels have finished */
    DeviceStream (*stream)(Device *device);
    const CaptureFunctions *captures;
} DeviceFunctions;

struct Device {
    char name[24];
    const DeviceFunctions *functions;
    struct Cuda *cuda; /* NULL on the host */
    bool repeatable;   /* device_is_repeatable */
    FreeBlocks cached;
    Capture *capture; /* the open one, or NULL */
    DeviceMemory memory;
    atomic_flag lock;
};

/* The memory of a captured step; the backend's own struct begins with it. */
struct Capture {
    Device *device;
    FreeBlocks cached; /* the capture's free blocks */
    int64_t in_use;    /* the number of its blocks that are not free */
    bool closed;       /* by pool_close, while blocks were still in use */
};

/* Returns the capture's free blocks to the pool at once, the others when they are freed, and then
 * frees the capture. */
void pool_close(Capture *capture);

/* Of DeviceFunctions, for the host: memory aligned to a cache line at least. */
void *allocate_on_host(Device *device, size_t bytes);
void free_on_host(Device *device, void *data);
void copy_on_host(Device *device, void *to, const void *from, size_t bytes);
void zero_on_host(Device *device, void *to, size_t bytes);
void fill_on_host(Tensor *tensor, Real value);

#ifdef TAPEGRAD_CPU
extern const DeviceFunctions cpu_functions; /* tensor/cpu/cpu.c */
#endif

#ifdef TAPEGRAD_CUDA
/* tensor/cuda/: the device "cuda" or "cuda:index", opened on first use; NULL for other names;
 * raises when there is none. And their number: 0 without a driver or a GPU. */
Device *cuda_open(const char *name);
int cuda_count(void);
void cuda_choose(int index); /* device_choose_gpu */
extern const CaptureFunctions cuda_captures;
#endif

/* Ends what an error of this thread interrupts: a capture; or NULL. Not for C++. */
extern _Thread_local void (*error_cleanup)(void);

#endif
