/* tensor/: errors, shapes, devices and their memory, tensors, random numbers, files.
 * The lowest module: a tensor may have a buffer for its gradient, but nothing here computes one. */
#ifndef TAPEGRAD_TENSOR_H
#define TAPEGRAD_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef _MSC_VER
#error "tapegrad needs MinGW-w64's gcc, or clang --target=x86_64-w64-mingw32, instead of MSVC"
#elif !defined __cplusplus && !(__STDC_VERSION__ >= 199901L)
#error "tapegrad.h needs C99 or later, for example -std=gnu11"
#elif __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tapegrad needs a little-endian processor: its files are little-endian"
#endif

/* The type of all values. The library in double has other names of these functions, so that a
 * program compiled for the other Real does not link. */
#ifdef TAPEGRAD_DOUBLE
typedef double Real;
#define tape_new tape_new_double
#define params_new params_new_double
#define device_open device_open_double
#define device_best device_best_double
#else
typedef float Real;
#endif

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* -------------------------------------------------------------------------------------- version */
#define TAPEGRAD_VERSION "0.1.0" /* of these headers; the Makefile reads it here */

/* The version of the library that the program runs with. */
const char *tapegrad_version(void);

/* ------------------------------------------------------------------------------------------ errors
 * Misuse (wrong shapes, wrong order of calls) and exhausted memory are raised through one handler,
 * always on the calling thread, with one sentence that names the operation, the offending value
 * and the expected one. The default handler prints the sentence and aborts. A custom handler may
 * longjmp out; tape_reset then frees everything that the step allocated and rewinds the Philox
 * counter to the step's start, and the step may be repeated. A step that accumulates gradients over
 * micro-batches is repeated from its first micro-batch (see tape_reset). If a handler returns, the
 * program aborts. File and data errors are ordinary: the function returns false (or NULL) and
 * tapegrad_error() has the sentence. The compiler warns where a program drops such a result. */
#define TAPEGRAD_MUST_CHECK __attribute__((warn_unused_result))

typedef void ErrorHandler(const char *sentence, void *context);

/* Installs a handler for all threads; NULL restores the default one. */
void tapegrad_on_error(ErrorHandler *handler, void *context);

/* The sentence of this thread's last error, "" if there was none. Valid until the next error. */
const char *tapegrad_error(void);

/* --------------------------------------------------------------------------------------- shapes */
enum { MAX_RANK = 4 };

typedef struct Shape {
    int rank;               /* 0 (a scalar) to MAX_RANK */
    int64_t size[MAX_RANK]; /* row-major: the last axis is contiguous; unused entries are 0 */
} Shape;

/* shape(2, 3): the shape [2, 3]. Raises when there are more than MAX_RANK sizes, when a size is
 * below 1, and when that many elements would take 2^63 bytes or more. */
#ifndef __cplusplus
#define shape(...)                                                                                 \
    shape_new((int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)),                         \
              (const int64_t[]){ __VA_ARGS__ })
#endif

/* The same from an array of `rank` sizes. Functions that take a Shape make the same checks. */
Shape shape_new(int rank, const int64_t *sizes);

/* The shape [] of a scalar. */
Shape shape_scalar(void);

/* The product of all sizes (1 for a scalar). */
int64_t shape_count(Shape shape);

/* The size of an axis; negative axes count from the end (-1 is the last). Raises when the axis does
 * not exist. */
int64_t shape_size(Shape shape, int axis);

/* The product of all sizes but the last: the number of rows (1 for a scalar). */
int64_t shape_rows(Shape shape);

/* The size of the last axis (1 for a scalar). */
int64_t shape_columns(Shape shape);

/* Whether both have the same rank and the same sizes. */
bool shape_equal(Shape a, Shape b);

/* "[2,3]" for messages. The returned struct holds the text: shape_text(s).text. */
typedef struct ShapeText {
    char text[96];
} ShapeText;
ShapeText shape_text(Shape shape);

/* -------------------------------------------------------------------------------------- devices */
typedef struct Device Device;

/* Opens a device by name: "cpu", "cpu:repeatable" (the CPU with equal bits for any number of
 * threads, by own products in place of oneDNN's), "plain" (the CPU by plain loops), "cuda" (which
 * is "cuda:0", and after dist_start the rank's GPU), "cuda:1", ... Raises when this machine has no
 * such device; there is no fallback.
 * Devices are shared, live until the process ends and are never freed. The first "cpu" takes about
 * 30 ms: it starts OpenMP's threads and, in a build with oneDNN, generates its kernels, which the
 * first operations would do otherwise. */
Device *device_open(const char *name);

/* The device "cuda" if there is one, else "cpu". Prints the choice to standard error once. */
Device *device_best(void);

/* The name that device_open takes, and whether this is a CUDA device. */
const char *device_name(const Device *device);
bool device_is_cuda(const Device *device);

/* Whether the device multiplies bf16 by its instructions: every CUDA device, and "cpu" on x86-64
 * with AVX512_BF16 in a build with oneDNN (unless ONEDNN_MAX_CPU_ISA excludes it). On others
 * PRECISION_BF16 works by conversion, slower than float32. False in a double-precision build. */
bool device_has_bf16(const Device *device);

/* Waits until the device has finished all launched work. Only timing needs it: reading a tensor
 * waits by itself. */
void device_wait(Device *device);

/* The number of threads of CPU kernels, 1 or more, for kernels that any thread of the process
 * calls; OpenMP's default for the calling thread until it is set. Call device_set_threads while no
 * kernel runs. Each thread that calls kernels has a team of its own. Work of less than 20
 * microseconds, or less than it takes to wake the team on a busy machine, is done by the calling
 * thread; the bits of a result depend on the number of threads alone, and on "cpu:repeatable" and
 * "plain" not on that either. A child process that is
 * forked while no kernel runs computes on one thread, and on a team in each thread that it
 * creates. */
void device_set_threads(int count);
int device_threads(void);

/* Bytes of device memory. */
typedef struct DeviceMemory {
    size_t current;  /* allocated now */
    size_t peak;     /* the most that was allocated since device_reset_peak */
    size_t reserved; /* owned by the caching pool: in use or cached for reuse */
} DeviceMemory;
DeviceMemory device_memory(const Device *device);
void device_reset_peak(Device *device);

/* Returns the cached memory to the system. */
void device_release_cached(Device *device);

/* For tests of recovery: the count-th allocation from now (1: the next) fails as if memory were
 * exhausted; 0 disarms. Returns whether the failure that was armed before has happened. All threads
 * share the count, without a lock: call it in programs that allocate from one thread. */
bool device_fail_allocation(int64_t count);

/* For tests of kernels: on, work of any size is shared by all threads. Results stay the same. */
void device_force_threads(bool on);

/* -------------------------------------------------------------------------------------- tensors */
typedef enum {
    TENSOR_REAL,
    TENSOR_INT32,
    TENSOR_BF16, /* an activation on a tape with PRECISION_BF16 */
} TensorType;

/* Bounds of the elements of an int32 tensor. spanning: the elements ascend from min to max. */
typedef struct IntegerBounds {
    bool known, spanning;
    int32_t min, max;
} IntegerBounds;

/* A tensor is contiguous and row-major. Programs may read the fields up to name, and write none. */
typedef struct Tensor Tensor;
struct Tensor {
    Device *device;
    TensorType type;
    Shape shape;
    union {
        Real *data;        /* device memory; for TENSOR_BF16 it points to 2-byte elements */
        int32_t *integers; /* the same memory, for TENSOR_INT32 */
    };
    bool requires_grad; /* backward passes contribute to its gradient */
    bool has_gradient;  /* the gradient holds contributions: the next one adds to them */
    const char *name;   /* a parameter's path name, or NULL */

    /* Internal. Not hidden in a struct of its own, because tapes, Params and states hold tensors
     * by value and copy them. */
    Tensor *base;          /* of a view: the tensor whose storage and gradient it shares */
    struct Block *block;   /* the pool's block that holds data, if this tensor owns one */
    Tensor *gradient;      /* dL/dthis, of the same shape; NULL if the tensor can have none */
    bool keep;             /* stays readable after the backward pass */
    struct Tape *tape;     /* its owner; NULL for a weight, a constant or a state */
    struct Params *params; /* of a weight or its gradient, or NULL */
    const char *(*allocate)(Tensor *tensor); /* before a parameter is used: NULL, or the error */
    /* A parameter's elements in the bf16 copy of its Params, which products read with
     * PRECISION_BF16, or NULL if there is no copy. written: updates it, as the values have
     * changed. */
    Real *(*bf16_copy)(Tensor *tensor, bool written);
    IntegerBounds bounds, required_bounds; /* of the integers now, and as operations require */
};

/* The number of elements. */
int64_t tensor_count(const Tensor *tensor);

/* "is [2,3]" for messages, and for a parameter "layer.weight is [2,3]": "op_linear: weight %s". */
typedef struct TensorText {
    char text[384];
} TensorText;
TensorText tensor_text(const Tensor *tensor);

/* Copies all tensor_count elements to host in row-major order; bf16 is converted to Real. Waits for
 * the device. Raises when host is NULL, and when the tensor is int32 (tensor_read_i32: is not) or
 * was released: by the backward pass (tensor_keep prevents that), tape_release or tape_reset. */
void tensor_read(const Tensor *tensor, Real *host);
void tensor_read_i32(const Tensor *tensor, int32_t *host);

/* The value of a tensor of one element. Raises when it has more, and when tensor_read does. */
double tensor_item(const Tensor *tensor);

/* Copies all elements from host, rounding to nearest for bf16. Do not write between an operation
 * that used the tensor and its backward pass: this would read the new values, and nothing detects
 * it (op_store raises). Raises as tensor_read does, and for int32 when an element exceeds the
 * bounds of an operation that used the tensor as indices. */
void tensor_write(Tensor *tensor, const Real *host);
void tensor_write_i32(Tensor *tensor, const int32_t *host);

/* For programs with kernels of their own: call it after launching a kernel that writes a weight's
 * data, in a recorded step too. It updates the weight's bf16 copy, which PRECISION_BF16 uses; the
 * library's own functions that write weights do so by themselves. Raises as tensor_read does. */
void tensor_written(Tensor *tensor);

/* Keeps a tensor, and its gradient, readable after the backward pass until tape_reset.
 * Returns the tensor. */
Tensor *tensor_keep(Tensor *tensor);

/* dL/dtensor, a tensor of the same shape, after a backward pass. A parameter's gradient is valid
 * until optim_step or params_zero_gradients, any other until tape_reset. Call tensor_keep on an
 * intermediate tensor before the pass. Raises when there is no gradient. */
Tensor *tensor_gradient(Tensor *tensor);

/* ------------------------------------------------------------------------------------------ random
 * Philox4x32-10 (Salmon et al. 2011, Parallel Random Numbers: As Easy as 1, 2, 3): a function of
 * (seed, stream, counter), the same on every device. Drawing n numbers advances the counter by
 * ceil(n / 4). */
typedef struct Random {
    uint64_t seed, stream, counter;
} Random;

/* A generator at counter 0; different streams of one seed are independent. */
Random random_new(uint64_t seed, uint64_t stream);

/* The stream of a name: its 64-bit FNV-1a hash. */
uint64_t random_stream(const char *name);

/* out [n] = uniform in [0, 1), multiples of 2^-24. These three functions raise when n < 0. */
void random_uniform(Random *random, Real *out, int64_t n);

/* out [n] = normal with mean 0 and standard deviation 1 (Box and Muller 1958). */
void random_normal(Random *random, Real *out, int64_t n);

/* out [n] = 1 with the given probability, else 0. Raises unless 0 <= probability <= 1. */
void random_bernoulli(Random *random, Real *out, int64_t n, Real probability);

/* host [rows, columns] = independent normal elements; then each group of `columns` consecutive rows
 * is made orthogonal by Gram-Schmidt, and every row keeps its length. Raises unless rows and
 * columns are 1 or more. */
void random_orthogonal(Random *random, Real *host, int64_t rows, int64_t columns);

/* An integer, uniform in [low, high); advances the counter by 1. Raises unless low < high. */
int64_t random_integer(Random *random, int64_t low, int64_t high);

/* out [n] = the integers in [0, n) in random order, all orders equally likely (Fisher and Yates).
 * Raises unless 0 <= n < 2^31. */
void random_permutation(Random *random, int32_t *out, int64_t n);

/* Shuffled epochs over the items 0 .. count - 1: a new permutation per epoch. Set the first three
 * fields and leave the last one 0. random is not advanced: it and the epoch determine the
 * permutation. */
typedef struct Shuffle {
    Random random;
    int32_t *order; /* [count]: memory of the caller, for the permutation of the current epoch */
    int64_t count;
    int64_t epochs; /* the current epoch + 1; 0: none yet */
} Shuffle;

/* out [size] = the items at position, position + 1, ... A position counts items from the start of
 * the first epoch, so it is all that a resumed run needs: batch number step starts at step size. A
 * batch that spans the end of an epoch continues with the next one: all batches have the same size,
 * and every item appears once per epoch. Raises unless count is at least 1, and position and
 * size are at least 0. */
void random_batch(Shuffle *shuffle, int64_t position, int32_t *out, int64_t size);

/* ------------------------------------------------------------------------------------------- files
 * The safetensors format: 8 bytes of header length, a JSON header, raw little-endian data. */
typedef enum {
    FILE_F32,
    FILE_F64,
    FILE_I32,
    FILE_I64,
    FILE_F16,
    FILE_BF16,
    FILE_OPAQUE, /* this and larger values: BOOL, U8, ..., which are checked but not converted */
    FILE_TYPES = FILE_OPAQUE + 16
} FileType;

typedef struct FileEntry {
    const char *name;
    FileType type;
    Shape shape;      /* its sizes may be 0 */
    const void *data; /* to save: host memory, elements as the format stores them */
} FileEntry;

typedef struct FileMetadata {
    const char *key, *value;
} FileMetadata;

/* Writes all entries and metadata to a temporary file beside path, PATH.tmp.0, flushes it to the
 * disk and renames it, so that path holds either the old file or the complete new one. A replaced
 * file keeps its permissions and, if the process may give it, its owner. A symbolic link stays, and
 * the file that it leads to is replaced. Other hard links keep the old file. A process that is
 * killed leaves its temporary file, which the next save to the path removes. Names are not empty;
 * names and keys are UTF-8 and unique. False on error. */
TAPEGRAD_MUST_CHECK
bool tensor_file_save(const FileEntry *entries, int entry_count, const FileMetadata *metadata,
                      int metadata_count, const char *path);

/* Whether a file can be saved there: takes all steps of a save but the rename. Call it before the
 * work whose result the file will hold. False, with the reason as tapegrad_error(), if the folder
 * is missing or cannot be written, the disk is full, the name is too long, or path is not a regular
 * file. */
TAPEGRAD_MUST_CHECK
bool tensor_file_can_save(const char *path);

/* Writes these bytes to path as tensor_file_save does, in any format. False on error. */
TAPEGRAD_MUST_CHECK
bool tensor_file_write(const char *path, const void *bytes, int64_t count);

/* Opens a file, reads its header and validates all of it against the file's size: header length,
 * JSON, names, types, sizes, bounds and overlaps. The functions below read the data: memory holds
 * what a program reads and no more. NULL on error. The caller frees it with
 * tensor_file_close, which accepts NULL; the functions below raise when the file is NULL. */
typedef struct TensorFile TensorFile;
TAPEGRAD_MUST_CHECK
TensorFile *tensor_file_open(const char *path);
void tensor_file_close(TensorFile *file);

/* Entries in the order of their data; they live until the file is closed. tensor_file_find returns
 * NULL when no entry has the name, tensor_file_entry raises when the index does not exist. The axes
 * of an entry that has more than MAX_RANK are joined into one: its shape is [count]. data is
 * NULL. */
int tensor_file_count(const TensorFile *file);
const FileEntry *tensor_file_entry(const TensorFile *file, int index);
const FileEntry *tensor_file_find(const TensorFile *file, const char *name);

/* The value of a key in the header's __metadata__, or NULL. */
const char *tensor_file_metadata(const TensorFile *file, const char *key);

/* Reads an entry: of F16, BF16, F32 or F64 as Real, of I32 or I64 as int32, or of any type its
 * bytes as the format stores them. False when the entry is missing or cannot be read, has another
 * type or another shape than expected, or holds a value that does not fit; host may then be partly
 * written. */
TAPEGRAD_MUST_CHECK
bool tensor_file_read(const TensorFile *file, const char *name, Shape expected, Real *host);
TAPEGRAD_MUST_CHECK
bool tensor_file_read_i32(const TensorFile *file, const char *name, Shape expected, int32_t *host);
TAPEGRAD_MUST_CHECK
bool tensor_file_read_bytes(const TensorFile *file, const char *name, void *host);

#ifdef __cplusplus
}

/* shape(2, 3) in C++: a function, since a macro would also replace the .shape(i) of any class. */
template <typename... Sizes> inline Shape shape(int64_t first, Sizes... others)
{
    const int64_t sizes[] = { first, static_cast<int64_t>(others)... };
    return shape_new(1 + static_cast<int>(sizeof...(others)), sizes);
}
#endif
#pragma GCC visibility pop
#endif
