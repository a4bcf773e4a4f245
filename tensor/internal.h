/* The part of tensor/ that the other directories use and programs do not. */
#ifndef TAPEGRAD_TENSOR_INTERNAL_H
#define TAPEGRAD_TENSOR_INTERNAL_H

#include "tensor/kernel.h"
#include "tensor/openmp.h"

#include <stdarg.h>
#include <string.h>

/* Whether tensor/cpu/ serves this system; elsewhere the core's memory and threads do. */
#if defined TAPEGRAD_CPU && defined __linux__ && defined _OPENMP
#define TAPEGRAD_CPU_LINUX
#endif

/* Raises an error through the handler: misuse, or exhausted memory. */
void error_raise(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
void error_raise_arguments(const char *format, va_list arguments) __attribute__((noreturn));

/* Raises "FUNCTION: NOUN is NULL" if the pointer is. */
static inline void error_need(const char *function, const char *noun, const void *pointer)
{
    if (!pointer)
        error_raise("%s: %s is NULL", function, noun);
}

/* Whose error an error is: that of the context which the thread entered last, a tape's step.
 * error_enter also names the operation for messages, "op_add", or "op_add: a" while it checks an
 * argument: a string that lives as long as the program; without a context (NULL) nothing else.
 * error_leave forgets the failure, and errors that follow are nobody's. error_claim makes this
 * thread the one worker of the context, until error_release or an error; it returns false if it is
 * that already, and raises, as function, if another thread is. */
typedef struct ErrorContext {
    int64_t id;
    bool failed;
    const void *worker; /* its `current`; NULL: none */
    struct ErrorContext *next;
} ErrorContext;
void error_context_open(ErrorContext *context);
void error_context_close(ErrorContext *context);
void error_enter(const ErrorContext *context, const char *operation);
void error_leave(ErrorContext *context);
bool error_claim(ErrorContext *context, const char *function);
void error_release(ErrorContext *context, bool claimed);
const char *error_operation(void); /* or "tapegrad" */

/* What this thread's errors call in place of printing and aborting. */
void error_set_default(ErrorHandler *handler);

/* Sets the sentence of tapegrad_error() for a file or data error; returns false. */
bool error_report(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Under AddressSanitizer, memory that is cached for reuse counts as freed. */
#ifdef __has_feature /* clang has no __SANITIZE_ADDRESS__ */
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

/* Device memory from the device's caching pool. */
typedef struct Block {
    void *data; /* aligned to 64 bytes */
    size_t size;
    struct Block *left, *right; /* in a heap of free blocks */
    Capture *capture;           /* the capture whose replays use it, or NULL */
    Device *owner;              /* of a workspace: its device, and the thread's earlier one */
    struct Block *next;
} Block;

/* NULL when memory is exhausted, even after the cached blocks were released. The caller restores
 * its own invariants and then raises with device_exhausted's sentence. */
Block *device_allocate(Device *device, size_t bytes);
void device_free(Device *device, Block *block);

/* "1048576 bytes requested, 2097152 in use on cpu, 0 cached" */
typedef struct MemoryText {
    char text[160];
} MemoryText;
MemoryText device_exhausted(const Device *device, size_t bytes);

/* Raises "op_add: memory is exhausted: ...", for the thread's operation. */
void device_raise_exhausted(const Device *device, size_t bytes) __attribute__((noreturn));

/* Whether the device computes with the plain kernels (device_open("plain")). */
bool device_is_plain(const Device *device);

/* Makes the device the thread's current one, on which kernels launch and whose memory their
 * workspaces are. */
void device_enter(Device *device);
Device *device_current(void);

/* Frees all workspaces of this thread (tensor/kernel.h). */
void device_workspace_free_all(void);

/* malloc, which device_fail_allocation can make fail. */
void *memory_allocate(size_t bytes);

/* Whether freed handles stay, so that their use is recognized: TAPEGRAD_DEBUG=1. */
bool memory_is_guarded(void);

/* Copies from the host, to the host and within a device. */
void device_copy_in(Device *device, void *to, const void *host, size_t bytes);
void device_copy_out(Device *device, void *host, const void *from, size_t bytes);
void device_copy(Device *device, void *to, const void *from, size_t bytes);
void device_zero(Device *device, void *to, size_t bytes);

/* The device named "cuda" is from now on the GPU index % (the number of GPUs). */
void device_choose_gpu(int index);

/* CUDA's index of a CUDA device, and its stream (a cudaStream_t), on which all its work is
 * enqueued. The device becomes CUDA's current one. */
typedef struct DeviceStream {
    int index;
    void *stream;
} DeviceStream;
DeviceStream device_stream(Device *device);

/* ---------------------------------------------------------------------------------------- captures
 * CUDA graph capture and replay. Kernels launched between begin and end are not executed but
 * recorded as a CUDA graph, which replay launches. Memory that is allocated during the capture
 * belongs to it until free, even after it is freed, since every replay uses it. Copies between
 * host and device cannot be captured and raise. An error that is raised during a capture ends the
 * capture first. */
typedef void BeforeReplay(void *context);
typedef struct CaptureFunctions {
    Capture *(*begin)(Device *device); /* NULL when memory is exhausted */
    /* NULL; or CUDA's reason to reject the graph, and the capture is freed. */
    const char *(*end)(Device *device);
    int64_t (*kernels)(const Capture *capture); /* kernel launches per replay */
    /* Registers a host callback that runs before every replay, in registration order; it uploads
     * per-step scalars. False when the open capture has the pair already. Raises when memory is
     * exhausted. */
    bool (*before_replay)(Device *device, BeforeReplay *function, void *context);
    void (*replay)(Capture *capture);
    void (*free)(Capture *capture);
} CaptureFunctions;
const CaptureFunctions *device_captures(const Device *device); /* NULL: it has none */
bool device_is_capturing(const Device *device);

/* A size of 0 becomes its default; raises, as function, unless it is in [0, max]. */
void shape_need_size(const char *function, const char *field, int64_t *size, int64_t default_size,
                     int64_t max);

/* Checks that the tensor can be read as this dtype, and allocates a parameter on its first use.
 * Returns NULL, or the error as the end of a sentence. */
const char *tensor_unreadable(const Tensor *tensor, TensorType type);

/* The label "op_linear: weight", followed by a parameter's name: "op_linear: weight l1.weight". */
TensorText tensor_label(const char *label, const Tensor *tensor);

/* The first element that is not finite, and its value; -1 if there is none. Reads to the host. */
int64_t tensor_find_not_finite(const Tensor *tensor, Real *value);

/* Sets all elements to value. */
void tensor_fill(Tensor *tensor, Real value);

/* For every dtype: the address of an element, the size of one, and of all. */
Real *tensor_at(const Tensor *tensor, int64_t index);
size_t tensor_element_bytes(const Tensor *tensor);
size_t tensor_bytes(const Tensor *tensor);

/* x + count, for elements of like's dtype. */
Real *elements_on(const Tensor *like, const Real *x, int64_t count);

/* The tensor that owns the storage: the base of a view, else the tensor itself. */
Tensor *tensor_root(const Tensor *tensor);

/* Threads for a region of the CPU of `count` elements at `cost` nanoseconds each: all, or one where
 * waking the others takes longer than the work (threads.c). The result depends on time: a kernel
 * may use it as num_threads(...), not to choose the order of a sum. */
enum { MIN_WORK = 20000 /* nanoseconds */ };
int threads_for(int64_t count, double cost);
bool threads_are_worth(double work, int threads);

/* Allocates, once, what OpenMP and oneDNN need to start: they end the process where memory is
 * exhausted. */
void threads_prepare(void);

/* Of the CPU backend (ops/cpu/products/): whether it multiplies bf16 by the processor's
 * instructions; and what its first product would allocate. */
bool cpu_has_bf16(void);
void cpu_prepare_products(void);

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* The loops of plain kernels, divided among the threads: over n independent elements, vectorized;
 * over R independent rows of C elements. */
#define PRAGMA(...) _Pragma(#__VA_ARGS__)
#define EACH(i, n)                                                                                 \
    PRAGMA(omp parallel for simd schedule(static) num_threads(threads_for(n, 0.5)))                \
    for (int64_t i = 0; i < (n); i++)
#define EACH_ROW(row, R, C)                                                                        \
    PRAGMA(omp parallel for schedule(static) num_threads(threads_for((R) * (C), 0.5)))             \
    for (int64_t row = 0; row < (R); row++)

/* Before a loop that sums into `variable` (+), or finds its largest element (max): the compiler may
 * use a vector of partial results. */
#define SUM(operator, variable) PRAGMA(omp simd reduction(operator: variable))

/* Philox4x32-10, for kernels that draw random numbers. */
#include "tensor/philox.h"

#endif
