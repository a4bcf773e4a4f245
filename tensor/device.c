/* Devices and their caching memory pool.
 *
 * Sizes are rounded up to classes, eight to a doubling (at most an eighth is wasted). A class's free
 * blocks are listed by address and the lowest is taken: what a request gets depends on which blocks
 * are free, not on the order in which they were freed, so a program that repeats its requests gets
 * the same addresses in every step. */
#include "tensor/internal.h"

#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    ALIGNMENT = 64,
    CLASSES_PER_DOUBLING = 8,
    CLASS_COUNT = 64 * CLASSES_PER_DOUBLING,
    HUGE_PAGE = 2 << 20,
};

struct Device {
    const char *name;
    Block *cached[CLASS_COUNT];
    DeviceMemory memory;
    pthread_mutex_t lock;
};

static Device cpu = { .name = "cpu", .lock = PTHREAD_MUTEX_INITIALIZER };

/* ------------------------------------------------------------------------------- failing on demand */
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

/* Large blocks ask for huge pages: streaming through them then misses the TLB rarely. */
static void *cpu_allocate(size_t bytes)
{
    size_t alignment = bytes >= HUGE_PAGE ? HUGE_PAGE : ALIGNMENT;
    void *data = NULL;
    if (posix_memalign(&data, alignment, bytes) != 0)
        return NULL;
    if (bytes >= HUGE_PAGE)
        madvise(data, bytes, MADV_HUGEPAGE);
    return data;
}

void device_copy_in(Device *device, void *to, const void *host, size_t bytes)
{
    (void)device;
    memcpy(to, host, bytes);
}

void device_copy_out(Device *device, void *host, const void *from, size_t bytes)
{
    (void)device;
    memcpy(host, from, bytes);
}

void device_copy(Device *device, void *to, const void *from, size_t bytes)
{
    (void)device;
    memcpy(to, from, bytes);
}

void device_zero(Device *device, void *to, size_t bytes)
{
    (void)device;
    memset(to, 0, bytes);
}

/* ------------------------------------------------------------------------------------- the pool */

/* The class of a size and the class's own size: 2^e (8 + i) / 8 for the smallest that holds it. */
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

static void release_cached(Device *device)
{
    for (int i = 0; i < CLASS_COUNT; i++) {
        while (device->cached[i]) {
            Block *block = device->cached[i];
            device->cached[i] = block->next;
            device->memory.reserved -= block->size;
            UNPOISON(block->data, block->size);
            free(block->data);
            free(block);
        }
    }
}

static Block *new_block(Device *device, size_t bytes)
{
    Block *block = malloc(sizeof *block);
    void *data = block ? cpu_allocate(bytes) : NULL;
    if (!data) {
        release_cached(device);
        data = block ? cpu_allocate(bytes) : NULL;
    }
    if (!data) {
        free(block);
        return NULL;
    }
    *block = (Block){ .data = data, .size = bytes };
    device->memory.reserved += bytes;
    return block;
}

Block *device_allocate(Device *device, size_t bytes)
{
    if (allocation_fails() || bytes > SIZE_MAX / 4)
        return NULL;
    size_t class_bytes;
    int class = size_class(bytes, &class_bytes);
    pthread_mutex_lock(&device->lock);
    Block *block = device->cached[class];
    if (block)
        device->cached[class] = block->next;
    else
        block = new_block(device, class_bytes);
    if (block) {
        DeviceMemory *memory = &device->memory;
        memory->current += block->size;
        if (memory->peak < memory->current)
            memory->peak = memory->current;
    }
    pthread_mutex_unlock(&device->lock);
    if (block) {
        POISON(block->data, block->size);
        UNPOISON(block->data, bytes);
    }
    return block;
}

void device_free(Device *device, Block *block)
{
    if (!block)
        return;
    size_t class_bytes;
    int class = size_class(block->size, &class_bytes);
    POISON(block->data, block->size);
    pthread_mutex_lock(&device->lock);
    Block **place = &device->cached[class];
    while (*place && (*place)->data < block->data)
        place = &(*place)->next;
    block->next = *place;
    *place = block;
    device->memory.current -= block->size;
    pthread_mutex_unlock(&device->lock);
}

MemoryText device_exhausted(const Device *device, size_t bytes)
{
    DeviceMemory memory = device_memory(device);
    MemoryText result;
    snprintf(result.text, sizeof result.text,
             "memory is exhausted: %zu bytes wanted, %zu in use on %s, %zu cached", bytes,
             memory.current, device->name, memory.reserved - memory.current);
    return result;
}

/* ------------------------------------------------------------------------------- public functions */
Device *device_open(const char *name)
{
    if (name && strcmp(name, "cpu") == 0)
        return &cpu;
    error_raise("device_open: there is no device \"%s\"; this library has \"cpu\"",
                name ? name : "(null)");
}

Device *device_best(void)
{
    static bool said;
    if (!said)
        fprintf(stderr, "device: cpu, threads: %d\n", device_threads());
    said = true;
    return &cpu;
}

const char *device_name(const Device *device)
{
    return device->name;
}

void device_set_threads(int count)
{
    if (count < 1)
        error_raise("device_set_threads: count is %d, expected at least 1", count);
    omp_set_num_threads(count);
}

int device_threads(void)
{
    return omp_get_max_threads();
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
    release_cached(device);
    pthread_mutex_unlock(&device->lock);
}
