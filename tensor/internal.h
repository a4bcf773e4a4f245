/* What the floors above use of tensor/ and programs do not. */
#ifndef TAPEGRAD_TENSOR_INTERNAL_H
#define TAPEGRAD_TENSOR_INTERNAL_H

#include "tensor/tensor.h"

#include <stdarg.h>

/* Raises an error through the handler: misuse, or exhausted memory. */
void error_raise(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
void error_raise_arguments(const char *format, va_list arguments) __attribute__((noreturn));

/* How many errors error_raise has raised on this thread. They name no tape, and so may belong to
 * any step that this thread is in. */
int64_t error_count(void);

/* Sets the sentence of tapegrad_error() for a file or data error; returns false. */
bool error_report(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Picks the CPU's or the CUDA device's kernel: the one place where the choice is made. */
#ifdef TAPEGRAD_CUDA
#define DEVICE_CALL(device, kernel, arguments)                                                     \
    (device_is_cuda(device) ? kernel##_cuda arguments : kernel##_cpu arguments)
#else
#define DEVICE_CALL(device, kernel, arguments) ((void)(device), kernel##_cpu arguments)
#endif

/* Under AddressSanitizer, memory that is cached for reuse counts as freed. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define POISON(data, size) ASAN_POISON_MEMORY_REGION(data, size)
#define UNPOISON(data, size) ASAN_UNPOISON_MEMORY_REGION(data, size)
#else
#define POISON(data, size) ((void)(data), (void)(size))
#define UNPOISON(data, size) ((void)(data), (void)(size))
#endif

/* A piece of device memory from the device's caching pool. */
typedef struct Block {
    void *data; /* aligned to 64 bytes */
    size_t size;
    struct Block *next; /* in a list of free blocks */
} Block;

/* NULL when memory is exhausted, after the cached blocks were given up and it was tried again.
 * The caller raises with device_exhausted's sentence, after it has put its own house in order. */
Block *device_allocate(Device *device, size_t bytes);
void device_free(Device *device, Block *block);

/* "1048576 bytes wanted, 2097152 held, 0 cached" */
typedef struct MemoryText {
    char text[128];
} MemoryText;
MemoryText device_exhausted(const Device *device, size_t bytes);

/* Host memory that counts for device_fail_allocation too; NULL when exhausted. */
void *memory_allocate(size_t bytes);

/* Copies between the host and a device, and within a device. */
void device_copy_in(Device *device, void *to, const void *host, size_t bytes);
void device_copy_out(Device *device, void *host, const void *from, size_t bytes);
void device_copy(Device *device, void *to, const void *from, size_t bytes);
void device_zero(Device *device, void *to, size_t bytes);

/* What is wrong with reading the tensor as this type, the end of a sentence; NULL when nothing is.
 * Lays a parameter out first. */
const char *tensor_unreadable(const Tensor *tensor, TensorType type);

/* The tensor that owns the storage which this one shows: itself or its base. */
Tensor *tensor_root(const Tensor *tensor);

/* One Philox4x32-10 block, for kernels that draw on their own. */
#include "tensor/philox.h"

#endif
