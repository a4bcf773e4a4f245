/* The tables of kernels: one function pointer per kernel, device and dtype of the activations.
 *
 * A line of ops/kernel_list.h
 *
 *     KERNEL(softmax_forward, (Real *out, const Real *x, int64_t R, int64_t C))
 *
 * declares a member of struct Kernels, called as kernels_of(x)->softmax_forward(...), and its
 * versions, which are written out where they are defined:
 *
 *     softmax_forward_plain   the definition: scalar loops over Real, below the derivation
 *     softmax_forward_cpu     the CPU backend's, where it is faster than plain
 *     softmax_forward_bf16    the CPU backend's for activations in bf16
 *     softmax_forward_cuda    the CUDA backend's, for both dtypes: its first parameter
 *
 * A REAL_KERNEL has no activations as operands, so one version per device: op_kernels_on(device,
 * TENSOR_REAL)->sgd_step(...). A FUSED_KERNEL and a BACKEND_KERNEL are NULL in the plain table,
 * which has every other kernel. A backend's table, ops/cpu/kernels.c or ops/cuda/kernels.cu, lists
 * the kernels that the backend replaces. */
#ifndef TAPEGRAD_OPS_KERNELS_H
#define TAPEGRAD_OPS_KERNELS_H

#include "autograd/tape.h"
#include "ops/attention/shared/arguments.h"
#include "ops/elementwise/binary_functions.h"
#include "ops/elementwise/broadcast.h"
#include "ops/elementwise/dropout.h"
#include "ops/elementwise/unary_functions.h"
#include "ops/losses/losses.h"
#include "ops/products/linear.h"
#include "ops/rows/layernorm.h"
#include "ops/shared/axis.h"
#include "ops/shared/integers.h"
#include "tensor/kernel.h"

/* Arguments that modules after ops define. */
struct Clipping;
struct StepScalars;

typedef struct Kernels {
#define KERNEL(name, parameters) void(*name) parameters;
#define REAL_KERNEL KERNEL
#define FUSED_KERNEL KERNEL
#define BACKEND_KERNEL KERNEL
#include "ops/kernel_list.h"
#undef KERNEL
#undef REAL_KERNEL
#undef FUSED_KERNEL
#undef BACKEND_KERNEL
} Kernels;

#define PARAMETERS(...) __VA_ARGS__
#define KERNEL(name, parameters)                                                                   \
    C_FUNCTION void name##_plain parameters;                                                       \
    FUSED_KERNEL(name, parameters)
#define FUSED_KERNEL(name, parameters)                                                             \
    C_FUNCTION void name##_cpu parameters;                                                         \
    C_FUNCTION void name##_bf16 parameters;                                                        \
    C_FUNCTION void name##_cuda(TensorType type, PARAMETERS parameters);
#define REAL_KERNEL(name, parameters)                                                              \
    C_FUNCTION void name##_plain parameters;                                                       \
    BACKEND_KERNEL(name, parameters)
#define BACKEND_KERNEL(name, parameters)                                                           \
    C_FUNCTION void name##_cpu parameters;                                                         \
    C_FUNCTION void name##_cuda parameters;
#include "ops/kernel_list.h"
#undef KERNEL
#undef REAL_KERNEL
#undef FUSED_KERNEL
#undef BACKEND_KERNEL

/* The kernels of a device for activations of this dtype. The device becomes the thread's current
 * one: kernels launch on it and take their workspaces from it. */
#pragma GCC visibility push(default)
C_FUNCTION const Kernels *op_kernels_on(Device *device, TensorType type);
#pragma GCC visibility pop

/* The kernels of a tensor's device and dtype. */
static inline const Kernels *kernels_of(const Tensor *tensor)
{
    return op_kernels_on(tensor->device, tensor->type);
}

/* The tables. The CPU backend has one for Real and one for bf16; CUDA likewise. */
extern const Kernels plain_kernels;
#ifdef TAPEGRAD_CPU
extern const Kernels cpu_kernels, cpu_bf16_kernels;
#endif
C_FUNCTION const Kernels *cuda_kernels(TensorType type);

#endif
