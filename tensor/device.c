/* Devices and their caching memory pool.
 *
 * Sizes are rounded up to size classes, eight per doubling, so at most an eighth is wasted. Each
 * class has a list of free blocks sorted by address, and allocation pops the lowest: the result
 * depends on which blocks are free, not on the order in which they were freed. A program that
 * repeats its requests therefore gets the same addresses in every step. */
#include "tensor/device.h"
#include "tensor/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGNMENT = 64, HUGE_PAGE = 2 << 20 };

static Device cpu = { .name = "cpu", .lock = PTHREAD_MUTEX_INITIALIZER };
static Device plain = { .name = "plain", .plain = true, .lock = PTHREAD_MUTEX_INITIALIZER };
static _Thread_local Device *current;

/* ---------------------------------------------------------------------------- failing on demand */
static int64_t allocations_until_failure;
static bool failure_happened;

bool device_fail_allocation(int64_t count)
{
    bool happened = failure_happened;
    failure_happened = false;
    allocations_until_failure = count;
    return happened;
}

static bool allocation_fails(void)
{
    if (allocations_until_failure == 0 || --allocations_until_failure > 0)
        return false;
    failure_happened = true;
    return true;
}

void *memory_allocate(size_t bytes)
{
    return allocation_fails() ? NULL : malloc(bytes);
}

/* -------------------------------------------------------------------------------------- the CPU */

/* Large blocks use huge pages, so that streaming through them rarely misses the TLB. */
static void *allocate_on_cpu(size_t bytes)
{
    size_t alignment = bytes >= HUGE_PAGE ? HUGE_PAGE : ALIGNMENT;
    void *data = NULL;
    if (posix_memalign(&data, alignment, bytes) != 0)
        return NULL;
#ifdef MADV_HUGEPAGE /* Linux */
    if (bytes >= HUGE_PAGE)
        madvise(data, bytes, MADV_HUGEPAGE);
#endif
    return data;
}

void fill_cpu(TensorType type, Real *out, Real value, int64_t n)
{
    BY_STORAGE(type, T, PARALLEL_FOR(i, n) store(T, out, i, value));
}

/* --------------------------------------------------------------------------------------- copies */
void device_copy_in(Device *device, void *to, const void *host, size_t bytes)
{
    CUDA_CALL(device, copy_in, (device, to, host, bytes), (void)memcpy(to, host, bytes));
}

void device_copy_out(Device *device, void *host, const void *from, size_t bytes)
{
    CUDA_CALL(device, copy_out, (device, host, from, bytes), (void)memcpy(host, from, bytes));
}

void device_copy(Device *device, void *to, const void *from, size_t bytes)
{
    CUDA_CALL(device, copy, (to, from, bytes), (void)memcpy(to, from, bytes));
}

void device_zero(Device *device, void *to, size_t bytes)
{
    CUDA_CALL(device, zero, (to, bytes), (void)memset(to, 0, bytes));
}

/* CPU kernels have finished when they return. */
void device_wait(Device *device)
{
    CUDA_CALL(device, wait, (device), (void)0);
}

void tensor_fill(Tensor *tensor, Real value)
{
    KERNEL_CALL(tensor, fill, (tensor->data, value, tensor_count(tensor)));
}

/* ------------------------------------------------------------------------------------- the pool */

/* The smallest class that holds `bytes`, and its size: 2^e (8 + i) / 8 units of ALIGNMENT. */
static int size_class(size_t bytes, size_t *class_bytes)
{
    size_t units = bytes <= ALIGNMENT ? 1 : (bytes + ALIGNMENT - 1) / ALIGNMENT;
    if (units <= CLASSES_PER_DOUBLING) {
        *class_bytes = units * ALIGNMENT;
        return (int)units - 1;
    }
    int exponent = 63 - __builtin_clzll((unsigned long long)(units - 1));
    size_t step = (size_t)1 << (exponent - 3);
    size_t eighths = (units + step - 1) / step; /* 9 to 16 */
    *class_bytes = eighths * step * ALIGNMENT;
    return (exponent - 2) * CLASSES_PER_DOUBLING + (int)eighths - 9;
}

static void insert(FreeBlocks *blocks, Block *block)
{
    size_t class_bytes;
    Block **link = &blocks->first[size_class(block->size, &class_bytes)];
    while (*link && (*link)->data < block->data)
        link = &(*link)->next;
    block->next = *link;
    *link = block;
}

/* Removes and returns the first block of a list, or NULL. */
static Block *pop(Block **list)
{
    Block *block = *list;
    if (block)
        *list = block->next;
    return block;
}

/* Makes a block that no capture uses available to all. */
static void insert_cached(Device *device, Block *block)
{
    POISON(block->data, block->size);
    block->capture = NULL;
    insert(&device->cached, block);
}

static void *allocate_block(Device *device, size_t bytes)
{
    return CUDA_CALL(device, block_allocate, (bytes), allocate_on_cpu(bytes));
}

static void free_block(Device *device, void *data)
{
    CUDA_CALL(device, block_free, (data), free(data));
}

/* Called without the lock, since CUDA's allocation may raise. */
static Block *new_block(Device *device, size_t bytes)
{
    void *data = allocate_block(device, bytes);
    if (!data) {
        device_release_cached(device);
        data = allocate_block(device, bytes);
    }
    if (!data)
        return NULL;
    Block *block = malloc(sizeof *block);
    if (!block) {
        free_block(device, data);
        return NULL;
    }
    *block = (Block){ .data = data, .size = bytes };
    pthread_mutex_lock(&device->lock);
    device->memory.reserved += bytes;
    pthread_mutex_unlock(&device->lock);
    return block;
}

/* ------------------------------------------------------------------------------------- captures */
typedef struct Callback {
    BeforeReplay *function;
    void *context;
    struct Callback *next;
} Callback;

struct Capture {
    Device *device;
    Graph graph;       /* set when the capture ends */
    FreeBlocks cached; /* the capture's free blocks */
    int64_t in_use;    /* the number of its blocks that are not free */
    bool freed;        /* by capture_free, while blocks were still in use */
    Callback *callbacks;
};

static _Thread_local Device *capturing;

bool device_is_capturing(const Device *device)
{
    return device->capture != NULL;
}

/* A capture allocates its own memory, so the previous step's cached blocks are released first: the
 * peak is one step's memory. */
Capture *device_capture(Device *device)
{
    Capture *capture = memory_allocate(sizeof *capture);
    if (!capture)
        return NULL;
    *capture = (Capture){ .device = device };
    device_release_cached(device);
    CUDA_CALL(device, capture_begin, (device),
              error_raise("device_capture: %s cannot capture a graph", device->name));
    device->capture = capture;
    capturing = device;
    return capture;
}

const char *device_capture_end(Device *device)
{
    Capture *capture = device->capture;
    const Graph graph = CUDA_CALL(device, capture_end, (device), (Graph){ 0 });
    capture->graph = graph;
    device->capture = NULL;
    capturing = NULL;
    if (!graph.executable)
        capture_free(capture);
    return graph.reason;
}

int64_t capture_kernels(const Capture *capture)
{
    return capture->graph.kernels;
}

void device_capture_abandon(void)
{
    Capture *capture = capturing ? capturing->capture : NULL;
    if (capture && !device_capture_end(capturing))
        capture_free(capture);
}

bool device_before_replay(Device *device, BeforeReplay *function, void *context)
{
    Callback **link = &device->capture->callbacks;
    for (; *link; link = &(*link)->next)
        if ((*link)->function == function && (*link)->context == context)
            return false;
    Callback *callback = memory_allocate(sizeof *callback);
    if (!callback)
        error_raise("device_before_replay: %s", device_exhausted(device, sizeof *callback).text);
    *callback = (Callback){ .function = function, .context = context };
    *link = callback;
    return true;
}

void device_replay(Capture *capture)
{
    for (Callback *callback = capture->callbacks; callback; callback = callback->next)
        callback->function(callback->context);
    CUDA_CALL(capture->device, graph_launch, (capture->graph.executable), (void)0);
}

/* The capture's free blocks return to the pool at once, the others when they are freed. */
void capture_free(Capture *capture)
{
    if (!capture)
        return;
    Device *device = capture->device;
    if (capture->graph.executable)
        CUDA_CALL(device, graph_free, (capture->graph.executable), (void)0);
    for (Callback *callback = capture->callbacks, *next; callback; callback = next) {
        next = callback->next;
        free(callback);
    }
    capture->callbacks = NULL;
    pthread_mutex_lock(&device->lock);
    for (int i = 0; i < CLASS_COUNT; i++)
        for (Block *block; (block = pop(&capture->cached.first[i]));)
            insert_cached(device, block);
    pthread_mutex_unlock(&device->lock);
    capture->freed = true;
    if (capture->in_use == 0)
        free(capture);
}

/* ---------------------------------------------------------------------------- allocate and free */
Block *device_allocate(Device *device, size_t bytes)
{
    if (allocation_fails() || bytes > SIZE_MAX / 4)
        return NULL;
    size_t class_bytes;
    int class = size_class(bytes, &class_bytes);
    pthread_mutex_lock(&device->lock);
    Capture *capture = device->capture;
    Block *block = pop(&(capture ? &capture->cached : &device->cached)->first[class]);
    pthread_mutex_unlock(&device->lock);
    if (!block)
        block = new_block(device, class_bytes);
    if (!block)
        return NULL;
    pthread_mutex_lock(&device->lock);
    DeviceMemory *memory = &device->memory;
    memory->current += block->size;
    if (memory->peak < memory->current)
        memory->peak = memory->current;
    block->capture = capture;
    if (capture)
        capture->in_use++;
    pthread_mutex_unlock(&device->lock);
    if (!capture) {
        POISON(block->data, block->size);
        UNPOISON(block->data, bytes);
        SPOIL(block->data, bytes);
    }
    return block;
}

void device_free(Device *device, Block *block)
{
    if (!block)
        return;
    Capture *capture = block->capture;
    pthread_mutex_lock(&device->lock);
    device->memory.current -= block->size;
    const bool last = capture && --capture->in_use == 0 && capture->freed;
    if (capture && !capture->freed)
        insert(&capture->cached, block);
    else
        insert_cached(device, block);
    pthread_mutex_unlock(&device->lock);
    if (last)
        free(capture);
}

bool device_is_plain(const Device *device)
{
    return device->plain;
}

void device_enter(Device *device)
{
    current = device;
    CUDA_CALL(device, device_enter, (device), (void)0);
}

Device *device_current(void)
{
    return current;
}

void device_raise_exhausted(const Device *device, size_t bytes)
{
    const char *label = error_operation() ? error_operation() : "tapegrad";
    error_raise("%.*s: %s", (int)strcspn(label, ":"), label, device_exhausted(device, bytes).text);
}

MemoryText device_exhausted(const Device *device, size_t bytes)
{
    DeviceMemory memory = device_memory(device);
    char left[32] = "";
    if (device->cuda)
        snprintf(left, sizeof left, ", %zu free", CUDA_CALL(device, device_left, (), (size_t)0));
    MemoryText result;
    snprintf(result.text, sizeof result.text,
             "memory is exhausted: %zu bytes requested, %zu in use on %s, %zu cached%s", bytes,
             memory.current, device->name, memory.reserved - memory.current, left);
    return result;
}

/* ----------------------------------------------------------------------------- public functions */
#ifndef TAPEGRAD_CUDA
#define DEVICES "\"cpu\", \"plain\""
int cuda_count(void)
{
    return 0;
}
Device *cuda_open(const char *name, int index)
{
    (void)index;
    error_raise("device_open: there is no device \"%s\"; this library was built without CUDA",
                name);
}
#else
#define DEVICES "\"cpu\", \"plain\", \"cuda\" (\"cuda:0\"), \"cuda:1\", ..."
#endif

/* The index of "cuda" (0) or "cuda:index"; -1 for another name. */
static int cuda_index(const char *name)
{
    if (strcmp(name, "cuda") == 0)
        return 0;
    if (strncmp(name, "cuda:", 5) != 0 || name[5] < '0' || name[5] > '9')
        return -1;
    char *end;
    long index = strtol(name + 5, &end, 10);
    return *end || index > 1023 ? -1 : (int)index;
}

Device *device_open(const char *name)
{
    if (name && strcmp(name, "cpu") == 0) {
        threads_prepare();
        return &cpu;
    }
    if (name && strcmp(name, "plain") == 0) {
        threads_prepare();
        return &plain;
    }
    int index = name ? cuda_index(name) : -1;
    if (index >= 0)
        return cuda_open(name, index);
    error_raise("device_open: there is no device \"%s\"; this library has " DEVICES,
                name ? name : "(null)");
}

Device *device_best(void)
{
    static bool said;
    Device *best = cuda_count() > 0 ? cuda_open("cuda", 0) : device_open("cpu");
    if (!said && best->cuda)
        fprintf(stderr, "device: %s\n", best->name);
    else if (!said)
        fprintf(stderr, "device: cpu, threads: %d\n", device_threads());
    said = true;
    return best;
}

bool device_is_cuda(const Device *device)
{
    return device->cuda != NULL;
}

bool device_has_bf16(const Device *device)
{
    if (sizeof(Real) == sizeof(double) || device->cuda)
        return sizeof(Real) == sizeof(float);
#ifdef TAPEGRAD_CPU
    return !device->plain && cpu_has_bf16();
#else
    return false;
#endif
}

const char *device_name(const Device *device)
{
    return device->name;
}

DeviceMemory device_memory(const Device *device)
{
    pthread_mutex_t *lock = &((Device *)device)->lock;
    pthread_mutex_lock(lock);
    DeviceMemory memory = device->memory;
    pthread_mutex_unlock(lock);
    return memory;
}

void device_reset_peak(Device *device)
{
    pthread_mutex_lock(&device->lock);
    device->memory.peak = device->memory.current;
    pthread_mutex_unlock(&device->lock);
}

void device_release_cached(Device *device)
{
    pthread_mutex_lock(&device->lock);
    for (int i = 0; i < CLASS_COUNT; i++)
        for (Block *block; (block = pop(&device->cached.first[i]));) {
            device->memory.reserved -= block->size;
            UNPOISON(block->data, block->size);
            free_block(device, block->data);
            free(block);
        }
    pthread_mutex_unlock(&device->lock);
}
