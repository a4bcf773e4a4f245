/* The plain table, and the choice of a table. */
#include "ops/kernels.h"

#include "tensor/internal.h"

const Kernels plain_kernels = {
#define KERNEL(name, parameters) .name = name##_plain,
#define REAL_KERNEL KERNEL
#define FUSED_KERNEL(name, parameters)
#define BACKEND_KERNEL(name, parameters)
#include "ops/kernel_list.h"
};

const Kernels *op_kernels_on(Device *device, TensorType type)
{
    (void)type; /* the plain kernels have one */
    device_enter(device);
#ifdef TAPEGRAD_CUDA
    if (device_is_cuda(device))
        return cuda_kernels(type);
#endif
#ifdef TAPEGRAD_CPU
    if (!device_is_plain(device))
        return type == TENSOR_BF16 ? &cpu_bf16_kernels : &cpu_kernels;
#endif
    return &plain_kernels;
}
