/* Devices: opening them, and copies to, from and within them. pool.c has their memory. */
#include "tensor/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------------------- host devices */
#ifndef TAPEGRAD_CPU_LINUX /* with it, large blocks use huge pages: tensor/cpu/memory.c */

/* The address that malloc returned stands before the aligned block. */
void *allocate_on_host(Device *device, size_t bytes)
{
    (void)device;
    char *start = malloc(bytes + BLOCK_ALIGNMENT + sizeof(void *));
    if (!start)
        return NULL;
    const uintptr_t first = (uintptr_t)start + sizeof(void *);
    void **data = (void **)((first + BLOCK_ALIGNMENT - 1) / BLOCK_ALIGNMENT * BLOCK_ALIGNMENT);
    data[-1] = start;
    return data;
}

void free_on_host(Device *device, void *data)
{
    (void)device;
    free(((void **)data)[-1]);
}
#endif

void copy_on_host(Device *device, void *to, const void *from, size_t bytes)
{
    (void)device;
    memcpy(to, from, bytes);
}

void zero_on_host(Device *device, void *to, size_t bytes)
{
    (void)device;
    memset(to, 0, bytes);
}

void fill_on_host(Tensor *tensor, Real value)
{
    const int64_t n = tensor_count(tensor);
    for (int64_t i = 0; i < n; i++)
        tensor->data[i] = value;
}

static const DeviceFunctions plain_functions = { .allocate = allocate_on_host,
                                                 .free = free_on_host,
                                                 .copy_in = copy_on_host,
                                                 .copy_out = copy_on_host,
                                                 .copy = copy_on_host,
                                                 .zero = zero_on_host,
                                                 .fill = fill_on_host };
#ifndef TAPEGRAD_CPU /* then "cpu" is "plain" */
#define cpu_functions plain_functions
#endif
static Device cpu = { .name = "cpu", .functions = &cpu_functions, .lock = ATOMIC_FLAG_INIT };
static Device repeatable = { .name = "cpu:repeatable",
                             .functions = &cpu_functions,
                             .repeatable = true,
                             .lock = ATOMIC_FLAG_INIT };
static Device plain = { .name = "plain", .functions = &plain_functions, .lock = ATOMIC_FLAG_INIT };

/* --------------------------------------------------------------------------- the current device */
static _Thread_local Device *current_device;

void device_enter(Device *device)
{
    current_device = device;
    if (device->functions->enter)
        device->functions->enter(device);
}

Device *device_current(void)
{
    return current_device;
}

KernelTable kernel_table(Device *device, TensorType type, const bool *exists)
{
    const bool bf16 = type == TENSOR_BF16;
    KernelTable table = KERNELS_PLAIN;
    device_enter(device);
    if (device_is_cuda(device))
        table = bf16 ? KERNELS_CUDA_BF16 : KERNELS_CUDA;
    else if (!device_is_plain(device) && (bf16 || exists[KERNELS_CPU]))
        table = bf16 ? KERNELS_CPU_BF16 : KERNELS_CPU;
    if (!exists[table])
        error_raise_operation("there are no kernels for %s on %s", bf16 ? "bf16" : "Real",
                              device_name(device));
    return table;
}

/* --------------------------------------------------------------------------------------- copies */
void device_copy_in(Device *device, void *to, const void *host_data, size_t bytes)
{
    device->functions->copy_in(device, to, host_data, bytes);
}

void device_copy_out(Device *device, void *host_data, const void *from, size_t bytes)
{
    device->functions->copy_out(device, host_data, from, bytes);
}

void device_copy(Device *device, void *to, const void *from, size_t bytes)
{
    device->functions->copy(device, to, from, bytes);
}

void device_zero(Device *device, void *to, size_t bytes)
{
    device->functions->zero(device, to, bytes);
}

void tensor_fill(Tensor *tensor, Real value)
{
    tensor->device->functions->fill(tensor, value);
}

/* Kernels of the host have finished when they return. */
void device_wait(Device *device)
{
    if (device->functions->wait)
        device->functions->wait(device);
}

DeviceStream device_stream(Device *device)
{
    return device->functions->stream(device);
}

/* -------------------------------------------------------------------------------------- opening */
#ifdef TAPEGRAD_CUDA
#define DEVICES "\"cpu\", \"cpu:repeatable\", \"plain\", \"cuda\" (\"cuda:0\"), \"cuda:1\", ..."
#else
#define DEVICES "\"cpu\", \"cpu:repeatable\", \"plain\"; it was built without CUDA"
static int cuda_count(void)
{
    return 0;
}
static Device *cuda_open(const char *name)
{
    (void)name;
    return NULL;
}
static void cuda_choose(int index)
{
    (void)index;
}
#endif

void device_choose_gpu(int index)
{
    cuda_choose(index);
}

Device *device_open(const char *name)
{
    Device *const hosts[] = { &cpu, &repeatable, &plain };
    for (int i = 0; i < 3; i++)
        if (name && strcmp(name, hosts[i]->name) == 0) {
            threads_prepare();
            return hosts[i];
        }
    Device *device = name ? cuda_open(name) : NULL;
    if (!device)
        error_raise("device_open: there is no device \"%s\"; this library has " DEVICES,
                    name ? name : "(null)");
    return device;
}

Device *device_best(void)
{
    static bool printed;
    Device *best = cuda_count() > 0 ? cuda_open("cuda") : device_open("cpu");
    if (!printed && best->cuda)
        fprintf(stderr, "device: %s\n", best->name);
    else if (!printed)
        fprintf(stderr, "device: cpu, threads: %d\n", device_threads());
    printed = true;
    return best;
}

bool device_is_cuda(const Device *device)
{
    return device->cuda != NULL;
}

bool device_has_bf16(const Device *device)
{
    return sizeof(Real) == sizeof(float) && !device->repeatable && device->functions->has_bf16 &&
           device->functions->has_bf16();
}

const char *device_name(const Device *device)
{
    return device->name;
}

const CaptureFunctions *device_captures(const Device *device)
{
    return device->functions->captures;
}

bool device_is_capturing(const Device *device)
{
    return device->capture != NULL;
}

bool device_is_repeatable(const Device *device)
{
    return device->repeatable;
}

bool device_is_plain(const Device *device)
{
    return device->functions == &plain_functions;
}
