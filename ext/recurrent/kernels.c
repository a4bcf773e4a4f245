/* The tables of recurrent layers' kernels. All elements are Real, whatever x is. */
#include "ext/recurrent/kernels.h"

const CellKernels *const lstm_kernels[KERNEL_TABLES] = {
    [KERNELS_PLAIN] = &lstm_plain,
#ifdef TAPEGRAD_CPU
    [KERNELS_CPU] = &lstm_cpu,
#endif
#ifdef TAPEGRAD_CUDA
    [KERNELS_CUDA] = &lstm_cuda,
#endif
};

const CellKernels *const gru_kernels[KERNEL_TABLES] = {
    [KERNELS_PLAIN] = &gru_plain,
#ifdef TAPEGRAD_CPU
    [KERNELS_CPU] = &gru_cpu,
#endif
#ifdef TAPEGRAD_CUDA
    [KERNELS_CUDA] = &gru_cuda,
#endif
};
