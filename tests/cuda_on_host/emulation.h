/* Shared by the emulation's sources. */
#ifndef CUDA_ON_HOST_EMULATION_H
#define CUDA_ON_HOST_EMULATION_H

#include "include/cuda_on_host.h"
#include "include/cuda_runtime_api.h"

#include <atomic>
#include <functional>

/* Marks a function whose memory accesses the sanitizers do not check. */
#ifdef __clang__
#define UNSANITIZED __attribute__((no_sanitize("address", "undefined")))
#else
#define UNSANITIZED
#endif

/* Stores the error for cudaGetLastError and returns it. */
cudaError_t emulation_fail(cudaError_t error);

/* The calling thread's current device. */
int emulation_device(void);

/* Runs the work at once; if the stream is being captured, records it as a graph node of this type
 * instead. Fails for a stream of another device and for an invalidated capture. */
cudaError_t emulation_enqueue(cudaStream_t stream, std::function<void()> work,
                              cudaGraphNodeType type = cudaGraphNodeTypeKernel);

/* The same for work of this name that exchanges data with other devices. Aborts unless the stream
 * waits for all work of the device's other streams. Later work of another stream aborts unless it
 * waits for this work. */
cudaError_t emulation_enqueue_collective(cudaStream_t stream, int device, const char *name,
                                         const std::function<void()> &work);

/* The error that emulation_enqueue would return on this stream. */
cudaError_t emulation_enqueue_check(cudaStream_t stream);

/* Whether kernels of this device may access all of the bytes. */
bool emulation_is_memory(const void *pointer, size_t bytes, int device);

/* Aborts with "WHO: WHAT is ..." unless kernels of this device may access all of the bytes: the
 * device's own or pinned memory. With 0 bytes, the pointer may be the end of an allocation. */
void emulation_check_memory(const char *who, const char *what, const void *pointer, size_t bytes,
                            int device);

/* The totals that tapegrad_cuda_on_host_counts returns. */
struct Counts {
    std::atomic<int64_t> work, copies_in, heuristics;
};
extern Counts emulation_counts;

/* Calls f with the address and size of each allocation of every device. */
void emulation_for_allocations(void (*f)(char *memory, size_t size));

/* Dependent launches (early.cpp). early_launch and early_block: a launch, or one of its blocks,
 * starts. early_hides: whether results of earlier kernels are hidden from the block. early_show:
 * restores them; false if the block has written there. */
void early_launch(const void *kernel, bool dependent);
void early_block(void);
bool early_hides(void);
bool early_show(void);

/* Fills memory with bytes 0xff: NaN as float, double and bf16, and far out of range as an index.
 * The memory may contain redzones of the sanitizer. */
void emulation_fill(void *memory, size_t bytes);

/* memcpy of memory that may contain redzones. */
void emulation_copy(void *to, const void *from, size_t bytes);

/* A section of the program or library that contains the emulation; empty if there is none. */
struct Section {
    char *begin;
    size_t size;
};
Section emulation_section(const char *name);

/* Prints "cuda_on_host: ..." and aborts. */
[[noreturn]] void emulation_abort(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
