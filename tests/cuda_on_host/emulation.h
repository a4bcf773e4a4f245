/* What the emulation's own sources share. */
#ifndef CUDA_ON_HOST_EMULATION_H
#define CUDA_ON_HOST_EMULATION_H

#include "include/cuda_on_host.h"
#include "include/cuda_runtime_api.h"

#include <atomic>
#include <functional>

/* A function whose accesses the sanitizers do not look at. */
#ifdef __clang__
#define UNSANITIZED __attribute__((no_sanitize("address", "undefined")))
#else
#define UNSANITIZED
#endif

/* Remembers the error for cudaGetLastError, and returns it. */
cudaError_t emulation_fail(cudaError_t error);

/* The calling thread's current device. */
int emulation_device(void);

/* Does the work now, or records it as a node of the type when the stream is being captured. Fails as
 * a stream of another device or an invalidated capture does. */
cudaError_t emulation_enqueue(cudaStream_t stream, std::function<void()> work,
                              cudaGraphNodeType type = cudaGraphNodeTypeKernel);

/* Like it, but for a launch or a call that reports the error in its own way. */
cudaError_t emulation_enqueue_check(cudaStream_t stream);

/* Whether kernels of this device may use all of the bytes. */
bool emulation_is_memory(const void *pointer, size_t bytes, int device);

/* Aborts with "WHO: WHAT is ..." unless all bytes are memory that kernels of this device may use:
 * its own, or pinned. A pointer's end may be the allocation's end. */
void emulation_check_memory(const char *who, const char *what, const void *pointer, size_t bytes,
                            int device);

/* What cuda_on_host_counts returns. */
struct Counts {
    std::atomic<int64_t> work, copies_in, heuristics;
};
extern Counts emulation_counts;

/* Calls f with the address and size of each allocation of every device. */
void emulation_for_allocations(void (*f)(char *memory, size_t size));

/* Dependent launches (early.cpp). A launch begins; a block of it begins; whether results are hidden
 * from the block; shows them, and returns false if the block has written there. */
void early_launch(const void *kernel, bool dependent);
void early_block(void);
bool early_hides(void);
bool early_show(void);

/* Bytes all ones: a float, double or bf16 that is not a number, an index far out of range. Does
 * not mind the sanitizer's redzones. */
void emulation_fill(void *memory, size_t bytes);

/* memcpy that does not mind them either. */
void emulation_copy(void *to, const void *from, size_t bytes);

/* A section of the program or library that the emulation is linked into; empty if there is none. */
struct Section {
    char *begin;
    size_t size;
};
Section emulation_section(const char *name);

/* Prints "cuda_on_host: ..." and aborts. */
[[noreturn]] void emulation_abort(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
