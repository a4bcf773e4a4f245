/* The CUDA runtime on the CPU: devices are mere numbers, their memory is host memory, streams run
 * their work at once, and captures record it.
 *
 * Environment: TAPEGRAD_CUDA_ON_HOST_DEVICES, the number of devices (2);
 * TAPEGRAD_CUDA_ON_HOST_MEMORY, bytes per device (16 GiB);
 * TAPEGRAD_CUDA_ON_HOST_FAULT, the code of an error that every call returns, as after a kernel's
 * fault; a program may set it while it runs. */
#include "emulation.h"

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <thread>
#include <time.h>
#include <vector>

enum { MAX_DEVICES = 16, PINNED = -1, PAGEABLE = -2 };

struct CUgraphNode_st {
    cudaGraphNodeType type;
    std::function<void()> work;
};

typedef std::vector<CUgraphNode_st> Work;

struct CUgraph_st {
    int device;
    std::shared_ptr<Work> work;
};

struct CUgraphExec_st {
    int device;
    std::shared_ptr<Work> work;
};

/* The number of work items of each stream, by its id, that something comes after. */
typedef std::map<uint64_t, uint64_t> Clock;

struct CUstream_st {
    int device;
    unsigned flags;
    cudaStreamCaptureStatus capture;
    cudaStreamCaptureMode mode;
    std::thread::id capturing_thread;
    std::shared_ptr<Work> captured;
    uint64_t id;         /* 0 until it is first used */
    uint64_t items;      /* of work, enqueued so far */
    uint64_t collective; /* the last of them that is one; 0: none */
    Clock waited;        /* for other streams */
};

struct CUevent_st {
    int device;
    unsigned flags;
    bool recorded, captured;
    double milliseconds;
    Clock clock; /* of its stream when it was recorded */
};

struct Allocation {
    size_t size;
    int device; /* or PINNED */
};

static struct {
    std::mutex lock;
    std::map<uintptr_t, Allocation> allocations; /* by address */
    std::set<CUstream_st *> streams;
    CUstream_st null_stream[MAX_DEVICES];
    size_t used[MAX_DEVICES];
    uint64_t last_id; /* of streams */
    Clock waited;     /* by the host */
} all;

typedef std::lock_guard<std::mutex> Lock;

static thread_local int current_device;
static thread_local cudaError_t last_error;

/* --------------------------------------------------------------------------------------- errors */
static const struct {
    cudaError_t error;
    const char *name, *text;
} error_texts[] = {
    { cudaSuccess, "cudaSuccess", "no error" },
    { cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument" },
    { cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory" },
    { cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error" },
    { cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
      "invalid configuration argument" },
    { cudaErrorInvalidDevicePointer, "cudaErrorInvalidDevicePointer", "invalid device pointer" },
    { cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
      "invalid copy direction for memcpy" },
    { cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
      "CUDA driver version is insufficient for CUDA runtime version" },
    { cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function" },
    { cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected" },
    { cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal" },
    { cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle" },
    { cudaErrorIllegalState, "cudaErrorIllegalState",
      "the operation cannot be performed in the present state" },
    { cudaErrorNotReady, "cudaErrorNotReady", "device not ready" },
    { cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
      "an illegal memory access was encountered" },
    { cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
      "too many resources requested for launch" },
    { cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure" },
    { cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported" },
    { cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
      "operation not permitted when stream is capturing" },
    { cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
      "operation failed due to a previous error during capture" },
    { cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
      "capture was not ended in the same stream as it began" },
    { cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
      "operation would make the legacy stream depend on a capturing blocking stream" },
    { cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
      "operation not permitted on an event last recorded in a capturing stream" },
    { cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
      "attempt to terminate a thread-local capture sequence from another thread" },
    { cudaErrorUnknown, "cudaErrorUnknown", "unknown error" },
};

static const char *error_text(cudaError_t error, bool name)
{
    for (auto &text : error_texts)
        if (text.error == error)
            return name ? text.name : text.text;
    return "unrecognized error code";
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error_text(error, true);
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error_text(error, false);
}

static unsigned long long environment(const char *name, unsigned long long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static cudaError_t fault(void)
{
    return (cudaError_t)environment("TAPEGRAD_CUDA_ON_HOST_FAULT", cudaSuccess);
}

cudaError_t emulation_fail(cudaError_t error)
{
    if (fault() != cudaSuccess)
        error = fault();
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return fault() != cudaSuccess ? fault() : last_error;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return error;
}

/* -------------------------------------------------------------------------------------- devices */

static int device_count(void)
{
    static const unsigned long long count = environment("TAPEGRAD_CUDA_ON_HOST_DEVICES", 2);
    return count < MAX_DEVICES ? (int)count : MAX_DEVICES;
}

/* Read at each call, so that a test may change it. */
static size_t device_bytes(void)
{
    return (size_t)environment("TAPEGRAD_CUDA_ON_HOST_MEMORY", 16ull << 30);
}

int emulation_device(void)
{
    return current_device;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = device_count() > 0 ? CUDART_VERSION : 0;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = device_count();
    return emulation_fail(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

/* Like a CUDA context, the emulation does not survive a fork. */
static cudaError_t check_device(int device)
{
    static const pid_t owner = getpid();
    if (owner != getpid())
        return cudaErrorInitializationError;
    if (device_count() == 0)
        return cudaErrorNoDevice;
    if (fault() != cudaSuccess)
        return fault();
    return device < 0 || device >= device_count() ? cudaErrorInvalidDevice : cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    const cudaError_t error = check_device(device);
    if (error == cudaSuccess)
        current_device = device;
    return emulation_fail(error);
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current_device;
    return emulation_fail(check_device(current_device));
}

/* An H100's, except for the multiprocessors: few of them keep the grids small that are sized by
 * their number. */
static int attribute_value(enum cudaDeviceAttr attribute)
{
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
        return 1024;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        return 48 << 10;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        return 227 << 10;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        return 228 << 10;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        return 2048;
    case cudaDevAttrWarpSize:
        return 32;
    case cudaDevAttrMultiProcessorCount:
        return 8;
    case cudaDevAttrComputeCapabilityMajor:
        return 9;
    case cudaDevAttrComputeCapabilityMinor:
        return 0;
    case cudaDevAttrL2CacheSize:
        return 50 << 20;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate:
    case cudaDevAttrGlobalMemoryBusWidth:
        return 1;
    }
    return -1;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    const cudaError_t error = check_device(device);
    if (error == cudaSuccess)
        *value = attribute_value(attribute);
    return emulation_fail(error == cudaSuccess && *value < 0 ? cudaErrorInvalidValue : error);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    const cudaError_t error = check_device(device);
    if (error != cudaSuccess)
        return emulation_fail(error);
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "CUDA on the host");
    properties->totalGlobalMem = device_bytes();
    properties->sharedMemPerBlock = 48 << 10;
    properties->sharedMemPerBlockOptin = 227 << 10;
    properties->major = 9;
    properties->multiProcessorCount = attribute_value(cudaDevAttrMultiProcessorCount);
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    return cudaSuccess;
}

/* ----------------------------------------------------------------------------- streams, captures
 * Callers of find_stream, invalidate, disturb_captures, check_unsafe and check_stream hold the
 * lock. */
static CUstream_st *find_stream(cudaStream_t stream)
{
    if (!stream) {
        all.null_stream[current_device].device = current_device;
        return &all.null_stream[current_device];
    }
    return all.streams.count(stream) ? stream : NULL;
}

static void invalidate(CUstream_st *stream)
{
    if (stream->capture == cudaStreamCaptureStatusActive)
        stream->capture = cudaStreamCaptureStatusInvalidated;
}

/* Invalidates all captures on the device; returns the error if there are any. blocking: only those
 * on streams that synchronize with the null stream. */
static cudaError_t disturb_captures(int device, bool blocking, cudaError_t error)
{
    cudaError_t result = cudaSuccess;
    for (CUstream_st *stream : all.streams)
        if (stream->device == device && stream->capture != cudaStreamCaptureStatusNone &&
            !(blocking && stream->flags & cudaStreamNonBlocking)) {
            invalidate(stream);
            result = error;
        }
    return result;
}

/* Invalidates the captures that forbid calls that may synchronize; relaxed captures allow them. */
static cudaError_t check_unsafe(void)
{
    cudaError_t result = check_device(current_device);
    for (CUstream_st *stream : all.streams)
        if (stream->capture == cudaStreamCaptureStatusActive &&
            (stream->mode == cudaStreamCaptureModeGlobal ||
             (stream->mode == cudaStreamCaptureModeThreadLocal &&
              stream->capturing_thread == std::this_thread::get_id()))) {
            invalidate(stream);
            result = cudaErrorStreamCaptureUnsupported;
        }
    return result;
}

/* Whether work may be enqueued on the stream; finds the stream's object. */
static cudaError_t check_stream(cudaStream_t handle, CUstream_st **stream)
{
    const cudaError_t error = check_device(current_device);
    *stream = find_stream(handle);
    if (error != cudaSuccess)
        return error;
    if (!*stream || (*stream)->device != current_device)
        return cudaErrorInvalidResourceHandle;
    if (!handle)
        return disturb_captures(current_device, true, cudaErrorStreamCaptureImplicit);
    return (*stream)->capture == cudaStreamCaptureStatusInvalidated
               ? cudaErrorStreamCaptureInvalidated
               : cudaSuccess;
}

cudaError_t emulation_enqueue_check(cudaStream_t handle)
{
    Lock lock(all.lock);
    CUstream_st *stream;
    return check_stream(handle, &stream);
}

/* ------------------------------------------------------------------------------- order of streams
 * Work runs when it is enqueued, so that results do not show a missing wait between streams. Vector
 * clocks (Lamport 1978; Mattern 1989) show it: a stream comes after its own work, after the events
 * that it has waited for, and after what the host has waited for. Callers hold the lock. */
static uint64_t id_of(CUstream_st *stream)
{
    if (stream->id == 0)
        stream->id = ++all.last_id;
    return stream->id;
}

static uint64_t time_of(const Clock &clock, uint64_t id)
{
    auto found = clock.find(id);
    return found == clock.end() ? 0 : found->second;
}

static void merge_clock(Clock *clock, const Clock &other)
{
    for (const auto &[id, items] : other)
        if (time_of(*clock, id) < items)
            (*clock)[id] = items;
}

static Clock clock_of(CUstream_st *stream)
{
    Clock clock = stream->waited;
    clock[id_of(stream)] = stream->items;
    return clock;
}

/* Whether the stream's next work comes after `items` of the other's work. The null stream waits for
 * blocking ones, and they for it. */
static bool comes_after(CUstream_st *stream, CUstream_st *other, uint64_t items)
{
    CUstream_st *null_stream = &all.null_stream[stream->device];
    const bool in_order = stream == other ||
                          (stream == null_stream && !(other->flags & cudaStreamNonBlocking)) ||
                          (other == null_stream && !(stream->flags & cudaStreamNonBlocking));
    return in_order || items <= time_of(stream->waited, id_of(other)) ||
           items <= time_of(all.waited, id_of(other));
}

static void check_order(CUstream_st *stream, CUstream_st *other, const char *collective)
{
    if (other->device != stream->device)
        return;
    if (collective && !comes_after(stream, other, other->items))
        emulation_abort("%s on device %d: its stream does not wait for work on another stream",
                        collective, stream->device);
    if (!comes_after(stream, other, other->collective))
        emulation_abort("work on a stream of device %d does not wait for the collective operation "
                        "on another stream",
                        stream->device);
}

/* Counts work; collective: its name, or NULL. */
static void count_work(CUstream_st *stream, const char *collective)
{
    for (CUstream_st *other : all.streams)
        check_order(stream, other, collective);
    all.null_stream[stream->device].device = stream->device;
    check_order(stream, &all.null_stream[stream->device], collective);
    stream->items++;
    if (collective)
        stream->collective = stream->items;
}

cudaError_t emulation_enqueue_collective(cudaStream_t handle, int device, const char *name,
                                         const std::function<void()> &work)
{
    {
        Lock lock(all.lock);
        CUstream_st *stream;
        const cudaError_t error = check_stream(handle, &stream);
        if (error != cudaSuccess)
            return error;
        if (stream->device != device)
            return cudaErrorInvalidResourceHandle;
        if (stream->capture == cudaStreamCaptureStatusActive)
            emulation_abort("%s: a capture of it is not emulated", name);
        count_work(stream, name);
    }
    work();
    return cudaSuccess;
}

/* ----------------------------------------------------------------------------------------- work */
Counts emulation_counts;

CudaOnHostCounts tapegrad_cuda_on_host_counts(void)
{
    return { emulation_counts.work, emulation_counts.copies_in, emulation_counts.heuristics };
}

cudaError_t emulation_enqueue(cudaStream_t handle, std::function<void()> work,
                              cudaGraphNodeType type)
{
    {
        Lock lock(all.lock);
        CUstream_st *stream;
        const cudaError_t error = check_stream(handle, &stream);
        if (error != cudaSuccess)
            return error;
        emulation_counts.work++;
        if (stream->capture == cudaStreamCaptureStatusActive) {
            stream->captured->push_back({ type, work });
            return cudaSuccess;
        }
        count_work(stream, NULL);
    }
    work();
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    Lock lock(all.lock);
    const cudaError_t error = check_device(current_device);
    if (error != cudaSuccess || flags > cudaStreamNonBlocking)
        return emulation_fail(error != cudaSuccess ? error : cudaErrorInvalidValue);
    *stream = new CUstream_st();
    (*stream)->device = current_device;
    (*stream)->flags = flags;
    all.streams.insert(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    Lock lock(all.lock);
    if (all.streams.erase(stream) == 0)
        return emulation_fail(cudaErrorInvalidResourceHandle);
    delete stream;
    return cudaSuccess;
}

/* Synchronizing with a stream, or a query, invalidates its capture. */
static cudaError_t wait_for(cudaStream_t handle)
{
    Lock lock(all.lock);
    CUstream_st *stream = find_stream(handle);
    cudaError_t error = check_device(current_device);
    if (error == cudaSuccess && !stream)
        error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess && !handle)
        error = disturb_captures(current_device, true, cudaErrorStreamCaptureImplicit);
    if (error == cudaSuccess && stream->capture != cudaStreamCaptureStatusNone) {
        invalidate(stream);
        error = cudaErrorStreamCaptureUnsupported;
    }
    if (error == cudaSuccess)
        merge_clock(&all.waited, clock_of(stream));
    return emulation_fail(error);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return wait_for(stream);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return wait_for(stream);
}

cudaError_t cudaDeviceSynchronize(void)
{
    Lock lock(all.lock);
    cudaError_t error = check_device(current_device);
    if (error == cudaSuccess)
        error = disturb_captures(current_device, false, cudaErrorStreamCaptureUnsupported);
    for (CUstream_st *stream : all.streams)
        if (stream->device == current_device && error == cudaSuccess)
            merge_clock(&all.waited, clock_of(stream));
    return emulation_fail(error);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned)
{
    Lock lock(all.lock);
    CUstream_st *stream = find_stream(handle);
    if (!stream || !event)
        return emulation_fail(cudaErrorInvalidResourceHandle);
    merge_clock(&stream->waited, event->clock);
    return emulation_fail(cudaSuccess);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode)
{
    Lock lock(all.lock);
    if (!handle || fault() != cudaSuccess)
        return emulation_fail(cudaErrorStreamCaptureUnsupported);
    CUstream_st *stream = find_stream(handle);
    if (!stream)
        return emulation_fail(cudaErrorInvalidResourceHandle);
    if (stream->capture != cudaStreamCaptureStatusNone)
        return emulation_fail(cudaErrorIllegalState);
    stream->capture = cudaStreamCaptureStatusActive;
    stream->mode = mode;
    stream->capturing_thread = std::this_thread::get_id();
    stream->captured = std::make_shared<Work>();
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status)
{
    Lock lock(all.lock);
    CUstream_st *stream = find_stream(handle);
    if (!stream)
        return emulation_fail(cudaErrorInvalidResourceHandle);
    *status = stream->capture;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph)
{
    Lock lock(all.lock);
    CUstream_st *stream = handle ? find_stream(handle) : NULL;
    *graph = NULL;
    if (!stream)
        return emulation_fail(cudaErrorInvalidResourceHandle);
    if (stream->capture == cudaStreamCaptureStatusNone)
        return emulation_fail(cudaErrorIllegalState);
    if (stream->mode != cudaStreamCaptureModeRelaxed &&
        stream->capturing_thread != std::this_thread::get_id())
        return emulation_fail(cudaErrorStreamCaptureWrongThread);
    const bool valid = stream->capture == cudaStreamCaptureStatusActive && fault() == cudaSuccess;
    if (valid)
        *graph = new CUgraph_st{ stream->device, stream->captured };
    stream->capture = cudaStreamCaptureStatusNone;
    stream->captured.reset();
    return emulation_fail(valid ? cudaSuccess : cudaErrorStreamCaptureInvalidated);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    if (!exec || !graph || fault() != cudaSuccess)
        return emulation_fail(cudaErrorInvalidValue);
    *exec = new CUgraphExec_st{ graph->device, graph->work };
    return cudaSuccess;
}

/* If nodes is NULL, stores their number. */
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    if (!graph || !count)
        return emulation_fail(cudaErrorInvalidValue);
    if (!nodes)
        *count = graph->work->size();
    for (size_t i = 0; nodes && i < *count; i++)
        nodes[i] = i < graph->work->size() ? &(*graph->work)[i] : NULL;
    return emulation_fail(cudaSuccess);
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *type)
{
    if (!node || !type)
        return emulation_fail(cudaErrorInvalidValue);
    *type = node->type;
    return emulation_fail(cudaSuccess);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t)
{
    return emulation_fail(exec ? cudaSuccess : cudaErrorInvalidValue);
}

/* In a capture, the launch becomes a node of the graph. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    if (!exec)
        return emulation_fail(cudaErrorInvalidValue);
    std::shared_ptr<Work> work = exec->work;
    return emulation_fail(emulation_enqueue(
        stream,
        [work] {
            for (auto &node : *work)
                node.work();
        },
        cudaGraphNodeTypeGraph));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return emulation_fail(exec ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return emulation_fail(graph ? cudaSuccess : cudaErrorInvalidValue);
}

/* --------------------------------------------------------------------------------------- events */
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    const cudaError_t error = check_device(current_device);
    if (error == cudaSuccess)
        *event = new CUevent_st{ current_device, flags, false, false, 0, {} };
    return emulation_fail(error);
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle)
{
    Lock lock(all.lock);
    CUstream_st *stream;
    const cudaError_t error = check_stream(handle, &stream);
    if (error != cudaSuccess || event->device != stream->device)
        return emulation_fail(error != cudaSuccess ? error : cudaErrorInvalidResourceHandle);
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    event->milliseconds = (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
    event->recorded = true;
    event->captured = stream->capture == cudaStreamCaptureStatusActive;
    if (!event->captured)
        event->clock = clock_of(stream);
    return cudaSuccess;
}

/* Waiting for a captured event is an error: only launches of the graph reach it. */
static cudaError_t check_event(cudaEvent_t event)
{
    if (!event)
        return emulation_fail(cudaErrorInvalidResourceHandle);
    Lock lock(all.lock);
    if (!event->captured) {
        merge_clock(&all.waited, event->clock);
        return emulation_fail(cudaSuccess);
    }
    disturb_captures(event->device, false, cudaErrorCapturedEvent);
    return emulation_fail(cudaErrorCapturedEvent);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return check_event(event);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return check_event(event);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    if (check_event(start) != cudaSuccess || check_event(end) != cudaSuccess)
        return last_error;
    if (!start->recorded || !end->recorded || (start->flags | end->flags) & cudaEventDisableTiming)
        return emulation_fail(cudaErrorInvalidResourceHandle);
    *milliseconds = (float)(end->milliseconds - start->milliseconds);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return emulation_fail(event ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

/* --------------------------------------------------------------------------------------- memory */
/* Uses the host's allocator with exactly the requested size, so that the sanitizer detects
 * overruns. The caller holds the lock. */
static cudaError_t allocate(void **memory, size_t size, int device)
{
    *memory = NULL;
    if (size == 0)
        return cudaSuccess;
    if (device >= 0 && (size > device_bytes() || all.used[device] > device_bytes() - size))
        return cudaErrorMemoryAllocation;
    if (posix_memalign(memory, 256, size) != 0) {
        *memory = NULL;
        return cudaErrorMemoryAllocation;
    }
    emulation_fill(*memory, size);
    all.allocations[(uintptr_t)*memory] = { size, device };
    if (device >= 0)
        all.used[device] += size;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t size)
{
    Lock lock(all.lock);
    const cudaError_t error = check_unsafe();
    return emulation_fail(error != cudaSuccess ? error : allocate(memory, size, current_device));
}

cudaError_t cudaMallocHost(void **memory, size_t size)
{
    Lock lock(all.lock);
    const cudaError_t error = check_unsafe();
    return emulation_fail(error != cudaSuccess ? error : allocate(memory, size, PINNED));
}

/* After a fault the call fails, but frees the memory, as the end of a CUDA context does. */
static cudaError_t release(void *memory, bool pinned)
{
    Lock lock(all.lock);
    const cudaError_t error = check_unsafe();
    if (!memory || (error != cudaSuccess && error != fault()))
        return emulation_fail(error);
    auto found = all.allocations.find((uintptr_t)memory);
    if (found == all.allocations.end() || (found->second.device == PINNED) != pinned)
        return emulation_fail(cudaErrorInvalidValue);
    if (!pinned)
        all.used[found->second.device] -= found->second.size;
    all.allocations.erase(found);
    free(memory);
    return emulation_fail(cudaSuccess);
}

cudaError_t cudaFree(void *memory)
{
    return release(memory, false);
}

cudaError_t cudaFreeHost(void *memory)
{
    return release(memory, true);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    Lock lock(all.lock);
    const cudaError_t error = check_device(current_device);
    if (error != cudaSuccess)
        return emulation_fail(error);
    *total = device_bytes();
    *free_bytes = *total < all.used[current_device] ? 0 : *total - all.used[current_device];
    return cudaSuccess;
}

/* The device of memory, or PINNED or PAGEABLE; whole: all of it is in one allocation. */
struct Side {
    int device;
    bool whole;
};

static Side find_memory(const void *memory, size_t size)
{
    Lock lock(all.lock);
    const uintptr_t address = (uintptr_t)memory;
    auto after = all.allocations.upper_bound(address);
    if (after == all.allocations.begin())
        return { PAGEABLE, true };
    const auto &[base, allocation] = *--after;
    const size_t offset = address - base;
    if (offset > allocation.size)
        return { PAGEABLE, true };
    if (offset == allocation.size && size > 0) /* outside of the allocation */
        return { PAGEABLE, true };
    return { allocation.device, size <= allocation.size - offset };
}

bool emulation_is_memory(const void *pointer, size_t bytes, int device)
{
    const Side side = find_memory(pointer, bytes);
    return side.whole && (side.device == PINNED || side.device == device);
}

void emulation_for_allocations(void (*f)(char *memory, size_t size))
{
    Lock lock(all.lock);
    for (const auto &allocation : all.allocations)
        if (allocation.second.device >= 0)
            f((char *)allocation.first, allocation.second.size);
}

void emulation_check_memory(const char *who, const char *what, const void *pointer, size_t bytes,
                            int device)
{
    const Side side = find_memory(pointer, bytes);
    if (side.device == PAGEABLE)
        emulation_abort("%s: %s is not memory of a device but of the host, or freed", who, what);
    if (side.device != PINNED && side.device != device)
        emulation_abort("%s on device %d: %s is memory of device %d", who, device, what,
                        side.device);
    if (!side.whole)
        emulation_abort("%s: %s and the %zu bytes from there on are not within one allocation", who,
                        what, bytes);
}

static cudaError_t check_copy(Side to, Side from, enum cudaMemcpyKind kind)
{
    if (!to.whole || !from.whole)
        return cudaErrorInvalidValue;
    const bool to_device = to.device >= 0, from_device = from.device >= 0;
    switch (kind) {
    case cudaMemcpyHostToHost:
        return to_device || from_device ? cudaErrorInvalidValue : cudaSuccess;
    case cudaMemcpyHostToDevice:
        return !to_device || from_device ? cudaErrorInvalidValue : cudaSuccess;
    case cudaMemcpyDeviceToHost:
        return to_device || !from_device ? cudaErrorInvalidValue : cudaSuccess;
    case cudaMemcpyDeviceToDevice:
        return !to_device || !from_device ? cudaErrorInvalidValue : cudaSuccess;
    case cudaMemcpyDefault:
        return cudaSuccess;
    }
    return cudaErrorInvalidMemcpyDirection;
}

/* A replay would access pageable host memory at a time that its owner does not know. */
static cudaError_t check_captured_copy(cudaStream_t handle, Side to, Side from)
{
    Lock lock(all.lock);
    CUstream_st *stream = find_stream(handle);
    if (!stream || stream->capture != cudaStreamCaptureStatusActive ||
        (to.device != PAGEABLE && from.device != PAGEABLE))
        return cudaSuccess;
    invalidate(stream);
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    if (size == 0)
        return emulation_fail(emulation_enqueue_check(stream));
    const Side to_side = find_memory(to, size), from_side = find_memory(from, size);
    cudaError_t error = check_copy(to_side, from_side, kind);
    if (error == cudaSuccess)
        error = check_captured_copy(stream, to_side, from_side);
    if (error == cudaSuccess)
        emulation_counts.copies_in += to_side.device >= 0 && from_side.device < 0;
    if (error == cudaSuccess)
        error = emulation_enqueue(
            stream, [=] { memcpy(to, from, size); }, cudaGraphNodeTypeMemcpy);
    return emulation_fail(error);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind)
{
    return cudaMemcpyAsync(to, from, size, kind, NULL);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream)
{
    if (size == 0)
        return emulation_fail(emulation_enqueue_check(stream));
    const Side side = find_memory(to, size);
    if (side.device == PAGEABLE || !side.whole)
        return emulation_fail(cudaErrorInvalidValue);
    return emulation_fail(emulation_enqueue(
        stream, [=] { memset(to, value, size); }, cudaGraphNodeTypeMemset));
}

cudaError_t cudaMemset(void *to, int value, size_t size)
{
    return cudaMemsetAsync(to, value, size, NULL);
}
