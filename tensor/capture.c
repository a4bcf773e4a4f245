/* Captures of a step's kernel launches, which a device replays as a whole (CUDA graphs). */
#include "tensor/device.h"

#include <stdlib.h>

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
    if (!device->functions->capture_begin)
        error_raise("device_capture: %s cannot capture a graph", device->name);
    device->functions->capture_begin(device);
    device->capture = capture;
    capturing = device;
    return capture;
}

const char *device_capture_end(Device *device)
{
    Capture *capture = device->capture;
    const Graph graph = device->functions->capture_end(device);
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
    capture->device->functions->graph_launch(capture->device, capture->graph.executable);
}

/* The capture's free blocks return to the pool at once, the others when they are freed. */
void capture_free(Capture *capture)
{
    if (!capture)
        return;
    Device *device = capture->device;
    if (capture->graph.executable)
        device->functions->graph_free(device, capture->graph.executable);
    for (Callback *callback = capture->callbacks, *next; callback; callback = next) {
        next = callback->next;
        free(callback);
    }
    capture->callbacks = NULL;
    spin_lock(&device->lock);
    for (int i = 0; i < CLASS_COUNT; i++)
        for (Block *block; (block = pool_pop(&capture->cached.first[i]));)
            pool_insert_cached(device, block);
    spin_unlock(&device->lock);
    capture->freed = true;
    if (capture->in_use == 0)
        free(capture);
}
