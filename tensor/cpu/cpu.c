/* The CPU backend's device: the host's memory, and tensors in bf16. */
#include "tensor/device.h"

#ifdef TAPEGRAD_CPU

static uint16_t *bits_of(const Tensor *tensor)
{
    return (uint16_t *)tensor->data;
}

static void read_bf16(const Tensor *tensor, Real *to)
{
    const int64_t n = tensor_count(tensor);
    for (int64_t i = 0; i < n; i++)
        to[i] = real_of_bf16(bits_of(tensor)[i]);
}

static void write_bf16(Tensor *tensor, const Real *from)
{
    const int64_t n = tensor_count(tensor);
    for (int64_t i = 0; i < n; i++)
        bits_of(tensor)[i] = bf16_of(from[i]);
}

static void fill_real_or_bf16(Tensor *tensor, Real value)
{
    if (tensor->type != TENSOR_BF16) {
        fill_on_host(tensor, value);
        return;
    }
    const int64_t n = tensor_count(tensor);
    for (int64_t i = 0; i < n; i++)
        bits_of(tensor)[i] = bf16_of(value);
}

const DeviceFunctions cpu_functions = { .allocate = allocate_on_host,
                                        .free = free_on_host,
                                        .copy_in = copy_on_host,
                                        .copy_out = copy_on_host,
                                        .copy = copy_on_host,
                                        .zero = zero_on_host,
                                        .fill = fill_real_or_bf16,
                                        .read_bf16 = read_bf16,
                                        .write_bf16 = write_bf16,
                                        .has_bf16 = cpu_has_bf16 };
#endif
