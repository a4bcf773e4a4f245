/* The emulation's interface for tests. */
#ifndef CUDA_ON_HOST_H
#define CUDA_ON_HOST_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Totals since the process started. */
typedef struct CudaOnHostCounts {
    int64_t work;       /* enqueued kernels, products, copies and memsets; 1 per graph launch */
    int64_t copies_in;  /* of these, copies from the host to a device */
    int64_t heuristics; /* calls of cublasLtMatmulAlgoGetHeuristic */
} CudaOnHostCounts;

#define CUDA_ON_HOST_FUNCTION __attribute__((visibility("default")))

CUDA_ON_HOST_FUNCTION CudaOnHostCounts tapegrad_cuda_on_host_counts(void);

/* Makes cublasLt's heuristic refuse epilogues with any of these bits of CUBLASLT_EPILOGUE_..., as
 * it does on some GPUs for some sizes; 0: none. */
CUDA_ON_HOST_FUNCTION void tapegrad_cuda_on_host_refuse_epilogues(unsigned bits);

#ifdef __cplusplus
}
#endif
#endif
