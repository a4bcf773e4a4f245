/* What tests ask of the emulation itself. */
#ifndef CUDA_ON_HOST_H
#define CUDA_ON_HOST_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Totals since the process began. */
typedef struct CudaOnHostCounts {
    int64_t work;       /* kernels, products, copies and memsets put on streams; one per graph */
    int64_t copies_in;  /* of these, copies from the host to a device */
    int64_t heuristics; /* calls of cublasLtMatmulAlgoGetHeuristic */
} CudaOnHostCounts;

#define CUDA_ON_HOST_FUNCTION __attribute__((visibility("default")))

CUDA_ON_HOST_FUNCTION CudaOnHostCounts cuda_on_host_counts(void);

/* From now on cublasLt's heuristic refuses epilogues that have any of these bits of
 * CUBLASLT_EPILOGUE_..., as that of some GPUs and sizes does; 0: none. */
CUDA_ON_HOST_FUNCTION void cuda_on_host_refuse_epilogues(unsigned bits);

#ifdef __cplusplus
}
#endif
#endif
