/* The caching pool of device memory.
 *
 * Sizes are rounded up to size classes, eight per doubling, so at most an eighth is wasted. Each
 * class has a heap of free blocks, and allocation pops the one with the lowest address: the result
 * depends on which blocks are free, not on the order in which they were freed. A program that
 * repeats its requests therefore gets the same addresses in every step. */
#include "tensor/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

bool memory_is_guarded(void)
{
    const char *debug = getenv("TAPEGRAD_DEBUG");
    return debug && strcmp(debug, "1") == 0;
}

/* ------------------------------------------------------------------------------------- the pool */

/* The smallest class that holds `bytes`, and its size: 2^e (8 + i) / 8 units of BLOCK_ALIGNMENT. */
static int size_class(size_t bytes, size_t *class_bytes)
{
    size_t units = bytes <= BLOCK_ALIGNMENT ? 1 : (bytes + BLOCK_ALIGNMENT - 1) / BLOCK_ALIGNMENT;
    if (units <= CLASSES_PER_DOUBLING) {
        *class_bytes = units * BLOCK_ALIGNMENT;
        return (int)units - 1;
    }
    int exponent = 63 - __builtin_clzll((unsigned long long)(units - 1));
    size_t step = (size_t)1 << (exponent - 3);
    size_t eighths = (units + step - 1) / step; /* 9 to 16 */
    *class_bytes = eighths * step * BLOCK_ALIGNMENT;
    return (exponent - 2) * CLASSES_PER_DOUBLING + (int)eighths - 9;
}

/* Merges two skew heaps (Sleator and Tarjan 1986) along their right children, whose sides are
 * exchanged on the way: O(log n) amortized. */
static Block *merge_heaps(Block *a, Block *b)
{
    Block *root = NULL, **link = &root;
    while (a && b) {
        Block *low = a->data < b->data ? a : b;
        b = low == a ? b : a;
        a = low->right;
        low->right = low->left;
        *link = low;
        link = &low->left;
    }
    *link = a ? a : b;
    return root;
}

static void insert_block(FreeBlocks *blocks, Block *block)
{
    size_t class_bytes;
    Block **heap = &blocks->first[size_class(block->size, &class_bytes)];
    block->left = block->right = NULL;
    *heap = merge_heaps(*heap, block);
}

static Block *pop_block(Block **heap)
{
    Block *block = *heap;
    if (block)
        *heap = merge_heaps(block->left, block->right);
    return block;
}

/* Makes a block that no capture uses available to all. */
static void insert_cached(Device *device, Block *block)
{
    POISON(block->data, block->size);
    block->capture = NULL;
    insert_block(&device->cached, block);
}

/* Called without the lock, since CUDA's allocation may raise. */
static Block *new_block(Device *device, size_t bytes)
{
    void *data = device->functions->allocate(device, bytes);
    if (!data) {
        device_release_cached(device);
        data = device->functions->allocate(device, bytes);
    }
    Block *block = data ? malloc(sizeof *block) : NULL;
    if (data && !block)
        device->functions->free(device, data);
    if (!block)
        return NULL;
    *block = (Block){ .data = data, .size = bytes };
    spin_lock(&device->lock);
    device->memory.reserved += bytes;
    spin_unlock(&device->lock);
    return block;
}

/* ---------------------------------------------------------------------------- allocate and free */
Block *device_allocate(Device *device, size_t bytes)
{
    if (allocation_fails() || bytes > SIZE_MAX / 4)
        return NULL;
    size_t class_bytes;
    int class = size_class(bytes, &class_bytes);
    spin_lock(&device->lock);
    Capture *capture = device->capture;
    Block *block = pop_block(&(capture ? &capture->cached : &device->cached)->first[class]);
    spin_unlock(&device->lock);
    if (!block)
        block = new_block(device, class_bytes);
    if (!block)
        return NULL;
    spin_lock(&device->lock);
    DeviceMemory *memory = &device->memory;
    memory->current += block->size;
    if (memory->peak < memory->current)
        memory->peak = memory->current;
    block->capture = capture;
    if (capture)
        capture->in_use++;
    spin_unlock(&device->lock);
    if (!capture) {
        POISON(block->data, block->size);
        UNPOISON(block->data, bytes);
#ifdef TAPEGRAD_CUDA_ON_HOST /* NaN, so that tests find reads of uninitialized memory */
        memset(block->data, 0xff, bytes);
#endif
    }
    return block;
}

void device_free(Device *device, Block *block)
{
    if (!block)
        return;
    Capture *capture = block->capture;
    spin_lock(&device->lock);
    device->memory.current -= block->size;
    const bool last = capture && --capture->in_use == 0 && capture->closed;
    if (capture && !capture->closed)
        insert_block(&capture->cached, block);
    else
        insert_cached(device, block);
    spin_unlock(&device->lock);
    if (last)
        free(capture);
}

void pool_close(Capture *capture)
{
    Device *device = capture->device;
    spin_lock(&device->lock);
    for (int i = 0; i < CLASS_COUNT; i++)
        for (Block *block; (block = pop_block(&capture->cached.first[i]));)
            insert_cached(device, block);
    capture->closed = true;
    const bool last = capture->in_use == 0;
    spin_unlock(&device->lock);
    if (last)
        free(capture);
}

void device_raise_exhausted(const Device *device, size_t bytes)
{
    error_raise_operation("%s", device_exhausted(device, bytes).text);
}

MemoryText device_exhausted(const Device *device, size_t bytes)
{
    DeviceMemory memory = device_memory(device);
    char left[32] = "";
    if (device->functions->available)
        snprintf(left, sizeof left, ", %lld free", (long long)device->functions->available(device));
    MemoryText result;
    snprintf(result.text, sizeof result.text,
             "memory is exhausted: %lld bytes requested, %lld in use on %s, %lld cached%s",
             (long long)bytes, (long long)memory.current, device->name,
             (long long)(memory.reserved - memory.current), left);
    return result;
}

DeviceMemory device_memory(const Device *device)
{
    atomic_flag *lock = &((Device *)device)->lock;
    spin_lock(lock);
    DeviceMemory memory = device->memory;
    spin_unlock(lock);
    return memory;
}

void device_reset_peak(Device *device)
{
    spin_lock(&device->lock);
    device->memory.peak = device->memory.current;
    spin_unlock(&device->lock);
}

void device_release_cached(Device *device)
{
    for (int i = 0; i < CLASS_COUNT; i++)
        for (;;) {
            spin_lock(&device->lock);
            Block *block = pop_block(&device->cached.first[i]);
            device->memory.reserved -= block ? block->size : 0;
            spin_unlock(&device->lock);
            if (!block)
                break;
            UNPOISON(block->data, block->size);
            device->functions->free(device, block->data);
            free(block);
        }
}
