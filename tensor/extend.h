/* The part of tensor/ that operations, layers and optimizers of one's own need, and programs do
 * not: errors, memory, copies, loops of kernels, tables of kernels. */
#ifndef TAPEGRAD_TENSOR_EXTEND_H
#define TAPEGRAD_TENSOR_EXTEND_H

#include <stdarg.h>
#include <string.h>

#include "tensor/kernel.h"
#include "tensor/openmp.h"

#pragma GCC visibility push(default)

/* Raises an error through the handler: misuse, or exhausted memory. */
void error_raise(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Raises "FUNCTION: NOUN is NULL" if the pointer is. */
static inline void error_need(const char *function, const char *noun, const void *pointer)
{
    if (!pointer)
        error_raise("%s: %s is NULL", function, noun);
}

/* The operation that messages name, "op_add" or "op_add: a": of this thread, set by the checks of
 * arguments (tape_use) or by error_name, with a string that lives as long as the program. */
void error_name(const char *operation);

/* Sets the sentence of tapegrad_error() for a file or data error; returns false. */
bool error_report(const char *format, ...) __attribute__((format(printf, 1, 2)));

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

/* malloc, which device_fail_allocation can make fail. */
void *memory_allocate(size_t bytes);

/* Copies from the host, to the host and within a device. */
void device_copy_in(Device *device, void *to, const void *host, size_t bytes);
void device_copy_out(Device *device, void *host, const void *from, size_t bytes);
void device_copy(Device *device, void *to, const void *from, size_t bytes);
void device_zero(Device *device, void *to, size_t bytes);

bool device_is_capturing(const Device *device); /* a replayed step is being recorded */

/* A size of 0 becomes its default; raises, as function, unless it is in [0, max]. */
void shape_need_size(const char *function, const char *field, int64_t *size, int64_t default_size,
                     int64_t max);

/* Checks that the tensor can be read as this dtype, and allocates a parameter on its first use.
 * Returns NULL, or the error as the end of a sentence. */
const char *tensor_unreadable(const Tensor *tensor, TensorType type);

/* Sets all elements to value. */
void tensor_fill(Tensor *tensor, Real value);

/* For every dtype: the address of an element, the size of one, and of all. */
Real *tensor_at(const Tensor *tensor, int64_t index);
size_t tensor_element_bytes(const Tensor *tensor);
size_t tensor_bytes(const Tensor *tensor);

/* x + count, for elements of like's dtype. */
Real *tensor_elements_on(const Tensor *like, const Real *x, int64_t count);

/* Threads for a region of the CPU of `count` elements at `cost` nanoseconds each: all, or one where
 * waking the others takes longer than the work (threads.c). The result depends on time: a kernel
 * may use it as num_threads(...), not to choose the order of a sum. */
enum { MIN_WORK = 20000 /* nanoseconds */ };
int device_threads_for(int64_t count, double cost);

/* --------------------------------------------------------------------------------- kernel tables
 * An extension's kernels are a struct of function pointers, and a constant of it per backend and
 * dtype, to which an array tables[KERNEL_TABLES] points:
 *
 *     static const SignKernels *const tables[KERNEL_TABLES] = {
 *         [KERNELS_PLAIN] = &sign_plain,
 *     #ifdef TAPEGRAD_CUDA
 *         [KERNELS_CUDA] = &sign_cuda,
 *     #endif
 *     };
 *     return KERNELS_FOR(tables, x->device, x->type);
 *
 * The pointers name the tables, so the linker finds them: nothing is registered. */
typedef enum KernelTable {
    KERNELS_PLAIN,
    KERNELS_CPU,
    KERNELS_CPU_BF16,
    KERNELS_CUDA,
    KERNELS_CUDA_BF16,
    KERNEL_TABLES
} KernelTable;

/* The table for activations of this dtype on the device, which becomes the thread's current one:
 * kernels launch on it. Without a table for the CPU plain's serves Real there; else raises
 * "op_sign: there are no kernels for bf16 on cpu". */
#define KERNELS_FOR(tables, device, type)                                                          \
    ((tables)[kernel_table(device, type,                                                           \
                           (const bool[KERNEL_TABLES]){                                            \
                               (tables)[KERNELS_PLAIN] != NULL, (tables)[KERNELS_CPU] != NULL,     \
                               (tables)[KERNELS_CPU_BF16] != NULL, (tables)[KERNELS_CUDA] != NULL, \
                               (tables)[KERNELS_CUDA_BF16] != NULL })])
KernelTable kernel_table(Device *device, TensorType type, const bool *exists);

/* The device of the kernel that runs. */
C_FUNCTION Device *device_current(void);

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* The loops of plain kernels, divided among the threads: over n independent elements, vectorized;
 * over R independent rows of C elements. */
#define PRAGMA(...) _Pragma(#__VA_ARGS__)
#define EACH(i, n)                                                                                 \
    PRAGMA(omp parallel for simd schedule(static) num_threads(device_threads_for(n, 0.5)))         \
    for (int64_t i = 0; i < (n); i++)
#define EACH_ROW(row, R, C)                                                                        \
    PRAGMA(omp parallel for schedule(static) num_threads(device_threads_for((R) * (C), 0.5)))      \
    for (int64_t row = 0; row < (R); row++)

/* Before a loop that sums into `variable` (+), or finds its largest element (max): the compiler may
 * use a vector of partial results. */
#define SUM(operator, variable) PRAGMA(omp simd reduction(operator: variable))

#pragma GCC visibility pop

/* Philox4x32-10, for kernels that draw random numbers. */
#include "tensor/philox.h"

/* ------------------------------------------------------------- not exported: for the tree alone */

/* error_raise of a list of arguments */
void error_raise_arguments(const char *format, va_list arguments) __attribute__((noreturn));

/* The name that error_name set, or "tapegrad". */
const char *error_operation(void);
/* Raises "op_add: " and this sentence, as kernels do, which know no arguments' names. */
C_FUNCTION void error_raise_operation(const char *format, ...)
    __attribute__((noreturn, format(printf, 1, 2)));

/* Raises "op_add: memory is exhausted: ...", for the thread's operation. */
void device_raise_exhausted(const Device *device, size_t bytes) __attribute__((noreturn));

#endif
