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

__attribute__((visibility("default"))) CudaOnHostCounts cuda_on_host_counts(void);

#ifdef __cplusplus
}
#endif
#endif
