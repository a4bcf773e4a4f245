/* The part of tensor/ that the other directories use and programs do not. */
#ifndef TAPEGRAD_TENSOR_INTERNAL_H
#define TAPEGRAD_TENSOR_INTERNAL_H

#include "tensor/extend.h"

/* Whether tensor/cpu/ serves this system; elsewhere plain C's memory and threads do. */
#if defined TAPEGRAD_CPU && defined __linux__ && defined _OPENMP
#define TAPEGRAD_CPU_LINUX
#endif

/* An error belongs to the context, a tape's step, that the thread entered last. error_enter also
 * names the operation for messages, "op_add", or "op_add: a" while it checks an argument: a string
 * that lives as long as the program. Without a context (NULL) it does nothing else. error_leave
 * forgets the failure; the errors that follow belong to no context. error_claim makes this thread
 * the one worker of the context, until error_release or an error. It returns false if this thread
 * is the worker already, and raises, with the name `function`, if another thread is. */
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

/* What this thread's errors call in place of printing and aborting. */
void error_set_default(ErrorHandler *handler);

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

/* Whether the device computes with the plain kernels (device_open("plain")). */
bool device_is_plain(const Device *device);

/* Whether the bits of results must not depend on the number of threads: device_open(
 * "cpu:repeatable"). A kernel calls it before it chooses by the number of threads how sums are
 * divided, or calls oneDNN. */
bool device_is_repeatable(const Device *device);

/* Makes the device the thread's current one, on which kernels launch and whose memory their
 * workspaces are. */
void device_enter(Device *device);

/* Frees all workspaces of this thread (tensor/kernel.h). */
void device_workspace_free_all(void);

/* Whether freed handles stay, so that their use is recognized: TAPEGRAD_DEBUG=1. */
bool memory_is_guarded(void);

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

/* The label "op_linear: weight", followed by a parameter's name: "op_linear: weight l1.weight". */
TensorText tensor_label(const char *label, const Tensor *tensor);

/* The first element that is not finite, and its value; -1 if there is none. Reads to the host. */
int64_t tensor_find_not_finite(const Tensor *tensor, bool minus_infinity, Real *value);

/* The tensor that owns the storage: the base of a view, else the tensor itself. */
Tensor *tensor_root(const Tensor *tensor);

bool threads_are_worth(double work, int threads);

/* Allocates, once, what OpenMP and oneDNN need to start: they end the process where memory is
 * exhausted. */
void threads_prepare(void);

/* Of the CPU backend (ops/cpu/products/): whether it multiplies bf16 by the processor's
 * instructions; and what its first product would allocate. */
bool cpu_has_bf16(void);
void cpu_prepare_products(void);

#endif
