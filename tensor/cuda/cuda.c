/* CUDA devices: streams, memory, copies. Each device has one stream, which executes
 * everything in the order of the calls. Memory can therefore be reused as soon as it is freed,
 * before the kernels that used it have run. */
#include "tensor/cuda/cuda.h"

#include "tensor/device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number of copies that can be pending before the host waits: more than a step has, so that the
 * host prepares a step while the GPU runs the previous one. */
enum { STAGING_BYTES = 1 << 20, STAGINGS = 16 };

/* A pinned buffer for host-to-device copies; event: the copy from it has completed. */
typedef struct Staging {
    void *memory;
    cudaEvent_t event;
} Staging;

typedef struct Cuda {
    int index;
    cudaStream_t stream;
    Staging staging[STAGINGS];
    int next_staging;
    void *out_staging; /* a pinned buffer for device-to-host copies */
} Cuda;

static struct {
    pthread_mutex_t lock;
    Device devices[CUDA_MAX_DEVICES];
    Cuda cudas[CUDA_MAX_DEVICES];
} all = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* This thread's current kernel call. */
static _Thread_local struct {
    const Device *device;
    const char *kernel;
} call;

/* ----------------------------------------------------------------------------------- every call */
/* A kernel's fault is reported by the next call and by every later one. */
static bool is_fault(cudaError_t result)
{
    return result == cudaErrorIllegalAddress ||
           (result >= cudaErrorHardwareStackError && result <= cudaErrorLaunchFailure);
}

void cuda_check(cudaError_t result, const char *what)
{
    if (result == cudaSuccess)
        return;
    cudaGetLastError(); /* clears it */
    error_raise("%.*s on %s: %s failed: %s%s", (int)strcspn(call.kernel, ":"), call.kernel,
                call.device->name, what, cudaGetErrorString(result),
                is_fault(result) ? "; the fault may be an earlier kernel's: run with "
                                   "CUDA_LAUNCH_BLOCKING=1 to find it"
                                 : "");
}

/* Makes the device the thread's current one and stores the kernel's name for error messages. Raises
 * nothing, since freeing memory and ending a capture must not: the next check reports the error of
 * cudaSetDevice, which CUDA keeps. */
static void enter_as(const Device *device, const char *kernel)
{
    call.device = device;
    call.kernel = kernel;
    cudaSetDevice(device->cuda->index);
}

static void enter(Device *device)
{
    enter_as(device, error_operation());
}

cudaStream_t cuda_stream(void)
{
    return call.device->cuda->stream;
}

int cuda_index(void)
{
    return call.device->cuda->index;
}

void cuda_launched(const char *kernel)
{
    cuda_check(cudaGetLastError(), kernel);
}

/* --------------------------------------------------------------------------------------- memory */
static void *allocate(Device *device, size_t bytes)
{
    enter(device);
    void *data = NULL;
    cudaError_t result = cudaMalloc(&data, bytes);
    if (result == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return NULL;
    }
    cuda_check(result, "cudaMalloc");
    return data;
}

/* cudaFree waits for the kernels that use the memory. The next launch's check reports its error. */
static void free_memory(Device *device, void *data)
{
    enter(device);
    cudaFree(data);
}

static size_t available(const Device *device)
{
    enter_as(device, "device_memory");
    size_t left = 0, whole;
    return cudaMemGetInfo(&left, &whole) == cudaSuccess ? left : 0;
}

/* --------------------------------------------------------------------------------------- copies */
static void check_not_capturing(const Device *device, const char *what)
{
    if (device_is_capturing(device))
        error_raise("tape_replay: the step %s the host while it is captured on %s; %s", what,
                    device->name,
                    "write inputs to tape_persistent tensors before, read results after");
}

static size_t min_bytes(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void copy_in(Device *device, void *to, const void *host, size_t bytes)
{
    enter(device);
    check_not_capturing(device, "copies from");
    Cuda *cuda = device->cuda;
    for (size_t done = 0, chunk; done < bytes; done += chunk) {
        Staging *staging = &cuda->staging[cuda->next_staging];
        cuda->next_staging = (cuda->next_staging + 1) % STAGINGS;
        chunk = min_bytes(bytes - done, STAGING_BYTES);
        cuda_check(cudaEventSynchronize(staging->event), "cudaEventSynchronize");
        memcpy(staging->memory, (const char *)host + done, chunk);
        cuda_check(cudaMemcpyAsync((char *)to + done, staging->memory, chunk,
                                   cudaMemcpyHostToDevice, cuda->stream),
                   "cudaMemcpyAsync");
        cuda_check(cudaEventRecord(staging->event, cuda->stream), "cudaEventRecord");
    }
}

static void copy_out(Device *device, void *host, const void *from, size_t bytes)
{
    enter(device);
    check_not_capturing(device, "reads to");
    Cuda *cuda = device->cuda;
    for (size_t done = 0, chunk; done < bytes; done += chunk) {
        chunk = min_bytes(bytes - done, STAGING_BYTES);
        cuda_check(cudaMemcpyAsync(cuda->out_staging, (const char *)from + done, chunk,
                                   cudaMemcpyDeviceToHost, cuda->stream),
                   "cudaMemcpyAsync");
        cuda_check(cudaStreamSynchronize(cuda->stream), "an earlier kernel or the copy");
        memcpy((char *)host + done, cuda->out_staging, chunk);
    }
}

static void wait_for_kernels(Device *device)
{
    enter(device);
    check_not_capturing(device, "waits for");
    cuda_check(cudaStreamSynchronize(device->cuda->stream), "an earlier kernel");
}

static void copy(Device *device, void *to, const void *from, size_t bytes)
{
    enter(device);
    cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda_stream()),
               "cudaMemcpyAsync");
}

static DeviceStream stream_of(Device *device)
{
    enter(device);
    return (DeviceStream){ cuda_index(), cuda_stream() };
}

static void zero(Device *device, void *to, size_t bytes)
{
    enter(device);
    cuda_check(cudaMemsetAsync(to, 0, bytes, cuda_stream()), "cudaMemsetAsync");
}

/* bf16 is copied to the end of host and converted from the front: element i is not written before
 * it was read. */
static void read_bf16(const Tensor *tensor, Real *host)
{
    const int64_t n = tensor_count(tensor);
    char *bits = (char *)(host + n) - tensor_bytes(tensor);
    copy_out(tensor->device, bits, tensor->data, tensor_bytes(tensor));
    for (int64_t i = 0; i < n; i++) {
        uint16_t upper;
        memcpy(&upper, bits + i * (int64_t)sizeof upper, sizeof upper);
        host[i] = real_of_bf16(upper);
    }
}

static void write_bf16(Tensor *tensor, const Real *host)
{
    enum { CHUNK = 1 << 15 };
    uint16_t chunk[CHUNK];
    const int64_t n = tensor_count(tensor);
    for (int64_t start = 0; start < n; start += CHUNK) {
        const int64_t count = n - start < CHUNK ? n - start : CHUNK;
        for (int64_t i = 0; i < count; i++)
            chunk[i] = bf16_of(host[start + i]);
        copy_in(tensor->device, tensor_at(tensor, start), chunk, (size_t)count * sizeof *chunk);
    }
}

static bool has_bf16(void)
{
    return true;
}

static void fill(Tensor *tensor, Real value)
{
    enter(tensor->device);
    fill_cuda(tensor->type, tensor->data, value, tensor_count(tensor));
}

static const DeviceFunctions functions = { .enter = enter,
                                           .allocate = allocate,
                                           .free = free_memory,
                                           .available = available,
                                           .copy_in = copy_in,
                                           .copy_out = copy_out,
                                           .copy = copy,
                                           .zero = zero,
                                           .fill = fill,
                                           .read_bf16 = read_bf16,
                                           .write_bf16 = write_bf16,
                                           .has_bf16 = has_bf16,
                                           .wait = wait_for_kernels,
                                           .stream = stream_of,
                                           .captures = &cuda_captures };

/* -------------------------------------------------------------------------------------- opening */
static cudaError_t count_devices(int *count)
{
    *count = 0;
    cudaError_t result = cudaGetDeviceCount(count);
    cudaGetLastError(); /* clears it */
    if (*count > CUDA_MAX_DEVICES)
        *count = CUDA_MAX_DEVICES;
    return *count == 0 && result == cudaSuccess ? cudaErrorNoDevice : result;
}

int cuda_count(void)
{
    int count;
    return count_devices(&count) == cudaSuccess ? count : 0;
}

static cudaError_t open_staging(Cuda *cuda)
{
    cudaError_t result = cudaSuccess;
    for (int i = 0; i < STAGINGS && result == cudaSuccess; i++) {
        Staging *staging = &cuda->staging[i];
        result = cudaMallocHost(&staging->memory, STAGING_BYTES);
        if (result == cudaSuccess)
            result = cudaEventCreateWithFlags(&staging->event, cudaEventDisableTiming);
    }
    return result != cudaSuccess ? result : cudaMallocHost(&cuda->out_staging, STAGING_BYTES);
}

static cudaError_t open_device(Device *device, Cuda *cuda, int index)
{
    cuda->index = index;
    cudaError_t result = cudaSetDevice(index);
    if (result == cudaSuccess)
        result = cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking);
    if (result == cudaSuccess)
        result = open_staging(cuda);
    if (result != cudaSuccess)
        return result;
    snprintf(device->name, sizeof device->name, "cuda:%d", index);
    atomic_flag_clear(&device->lock);
    device->functions = &functions;
    device->cuda = cuda;
    return cudaSuccess;
}

static int chosen; /* "cuda", modulo the number of GPUs */

void cuda_choose(int index)
{
    chosen = index;
}

/* The index of "cuda" or "cuda:index"; -1 for another name. */
static int parse_index(const char *name, int count)
{
    if (strcmp(name, "cuda") == 0)
        return count > 0 ? chosen % count : 0;
    if (strncmp(name, "cuda:", 5) != 0 || name[5] < '0' || name[5] > '9')
        return -1;
    char *end;
    long index = strtol(name + 5, &end, 10);
    return *end || index > 1023 ? -1 : (int)index;
}

Device *cuda_open(const char *name)
{
    int count;
    cudaError_t result = count_devices(&count);
    const int index = parse_index(name, count);
    if (index < 0)
        return NULL;
    if (result != cudaSuccess)
        error_raise("device_open: \"%s\": no GPU was found: %s", name, cudaGetErrorString(result));
    if (index >= count)
        error_raise("device_open: there is no device \"%s\"; this machine has %d of that kind, "
                    "from \"cuda:0\" to \"cuda:%d\"",
                    name, count, count - 1);
    Device *device = &all.devices[index];
    pthread_mutex_lock(&all.lock);
    if (!device->cuda)
        result = open_device(device, &all.cudas[index], index);
    pthread_mutex_unlock(&all.lock);
    if (result != cudaSuccess) {
        cudaGetLastError(); /* clears it */
        error_raise("device_open: \"%s\": %s", name, cudaGetErrorString(result));
    }
    return device;
}
