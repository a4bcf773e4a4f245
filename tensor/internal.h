/* What the floors above use of tensor/ and programs do not. */
#ifndef TAPEGRAD_TENSOR_INTERNAL_H
#define TAPEGRAD_TENSOR_INTERNAL_H

#include "tensor/tensor.h"

#include <stdarg.h>
#include <string.h>

/* Raises an error through the handler: misuse, or exhausted memory. */
void error_raise(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
void error_raise_arguments(const char *format, va_list arguments) __attribute__((noreturn));

/* How many errors error_raise has raised on this thread. They name no tape, and so may belong to
 * any step that this thread is in. */
int64_t error_count(void);

/* Sets the sentence of tapegrad_error() for a file or data error; returns false. */
bool error_report(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Where a call is made, and how its tensors are stored: of a device (then in Real) or a tensor. */
typedef struct Place {
    const Device *device;
    TensorType type;
} Place;
static inline Place place_of_device(const Device *device)
{
    Place place = { device, TENSOR_REAL };
    return place;
}
static inline Place place_of_tensor(const Tensor *tensor)
{
    Place place = { tensor->device, tensor->type };
    return place;
}
#define PLACE(x)                                                                                   \
    _Generic((x), Device *                                                                         \
             : place_of_device, const Device *                                                     \
             : place_of_device, Tensor *                                                           \
             : place_of_tensor, const Tensor *                                                     \
             : place_of_tensor)(x)

/* Picks the CPU's or the CUDA device's kernel, kernel_cpu or kernel_cuda, which take the same
 * arguments: the one place where the choice is made. Before a CUDA device's, cuda_enter makes its
 * device the thread's and notes what is being called; on the CPU it is false. */
#ifdef TAPEGRAD_CUDA
bool cuda_enter(Place place, const char *kernel);
bool cuda_enter_unchecked(Place place, const char *kernel);
#define DEVICE_CALL(place, kernel, arguments)                                                      \
    __extension__({                                                                                \
        extern __typeof__(kernel##_cpu) kernel##_cuda;                                             \
        cuda_enter(PLACE(place), #kernel) ? kernel##_cuda arguments : kernel##_cpu arguments;      \
    })
/* The same for what must not raise: freeing, and ending a capture, which an error may have begun.
 * These kernels do not check CUDA's results; a fault makes the next call fail as well. */
#define DEVICE_CALL_UNCHECKED(place, kernel, arguments)                                            \
    __extension__({                                                                                \
        extern __typeof__(kernel##_cpu) kernel##_cuda;                                             \
        cuda_enter_unchecked(PLACE(place), #kernel) ? kernel##_cuda arguments                      \
                                                    : kernel##_cpu arguments;                      \
    })
#else
#define DEVICE_CALL(place, kernel, arguments) ((void)(place), kernel##_cpu arguments)
#define DEVICE_CALL_UNCHECKED DEVICE_CALL
#endif

/* Under AddressSanitizer, memory that is cached for reuse counts as freed. */
#ifdef __has_feature /* clang's way to tell */
#if __has_feature(address_sanitizer) && !defined __SANITIZE_ADDRESS__
#define __SANITIZE_ADDRESS__
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define POISON(data, size) ASAN_POISON_MEMORY_REGION(data, size)
#define UNPOISON(data, size) ASAN_UNPOISON_MEMORY_REGION(data, size)
#else
#define POISON(data, size) ((void)(data), (void)(size))
#define UNPOISON(data, size) ((void)(data), (void)(size))
#endif

typedef struct Capture Capture;

/* Memory of unspecified content is full of not-a-numbers where tests look for reads of it. */
#ifdef TAPEGRAD_CUDA_ON_HOST
#define SPOIL(data, size) memset(data, 0xff, size)
#else
#define SPOIL(data, size) ((void)(data), (void)(size))
#endif

/* A piece of device memory from the device's caching pool. */
typedef struct Block {
    void *data; /* aligned to 64 bytes */
    size_t size;
    struct Block *next; /* in a list of free blocks */
    Capture *capture;   /* whose replays use it, or NULL */
} Block;

/* NULL when memory is exhausted, after the cached blocks were given up and it was tried again.
 * The caller raises with device_exhausted's sentence, after it has put its own house in order. */
Block *device_allocate(Device *device, size_t bytes);
void device_free(Device *device, Block *block);

/* "1048576 bytes wanted, 2097152 in use on cpu, 0 cached" */
typedef struct MemoryText {
    char text[160];
} MemoryText;
MemoryText device_exhausted(const Device *device, size_t bytes);

/* Host memory that counts for device_fail_allocation too; NULL when exhausted. */
void *memory_allocate(size_t bytes);

/* Copies between the host and a device, and within a device. */
void device_copy_in(Device *device, void *to, const void *host, size_t bytes);
void device_copy_out(Device *device, void *host, const void *from, size_t bytes);
void device_copy(Device *device, void *to, const void *from, size_t bytes);
void device_zero(Device *device, void *to, size_t bytes);

/* ---------------------------------------------------------------------------------------- captures
 * What is called on a CUDA device between device_capture and device_capture_end is not executed but
 * recorded, as a CUDA graph; each device_replay executes it all. Memory that is taken meanwhile
 * belongs to the capture until capture_free, also when it is given back, since every replay uses
 * it. Copies between host and device cannot be recorded: they raise. An error that is raised while
 * a capture is open ends it first. */
bool device_is_capturing(const Device *device);
Capture *device_capture(Device *device); /* NULL when memory is exhausted */
/* NULL; or why CUDA refuses what was recorded, and the capture is freed. */
const char *device_capture_end(Device *device);
int64_t capture_kernels(const Capture *capture); /* how many each replay launches */
void device_capture_abandon(void); /* ends and frees this thread's open capture, if there is one */
void device_replay(Capture *capture);
void capture_free(Capture *capture);

/* To be called before each replay, in this order: what the host does in every step, and the copying
 * of the step's numbers to where the recorded kernels read them. False when this capture has the
 * pair already. Raises when memory is exhausted. */
typedef void BeforeReplay(void *context);
bool device_before_replay(Device *device, BeforeReplay *function, void *context);

/* What is wrong with reading the tensor as this type, the end of a sentence; NULL when nothing is.
 * Lays a parameter out first. */
const char *tensor_unreadable(const Tensor *tensor, TensorType type);

/* All elements <- value. */
void tensor_fill(Tensor *tensor, Real value);

/* The address of an element, and the size of one, whatever the type. */
Real *tensor_at(const Tensor *tensor, int64_t index);
size_t tensor_element_bytes(const Tensor *tensor);

/* The address so many elements on from x, which are stored as those of the tensor. */
Real *elements_on(const Tensor *like, const Real *x, int64_t count);

/* The tensor that owns the storage which this one shows: itself or its base. */
Tensor *tensor_root(const Tensor *tensor);

/* One Philox4x32-10 block, for kernels that draw on their own. */
#include "tensor/philox.h"

#endif
