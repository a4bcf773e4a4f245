/* Gated linear attention's kernels. */
#ifndef TAPEGRAD_GATED_LINEAR_ATTENTION_KERNELS_H
#define TAPEGRAD_GATED_LINEAR_ATTENTION_KERNELS_H

#include "extend.h"

/* Arguments, and destinations of their gradients: see op_gated_linear_attention. */
typedef struct GatedLinear {
    AttentionInputs x;
    const Real *log_decay; /* [B, N, H, D] */
    const Real *state;     /* [B, H, D, M], or NULL: all 0 */
} GatedLinear;
typedef struct GatedLinearGradient {
    AttentionGradient x;
    Gradient log_decay; /* [B, N, H, D] */
    Real *state;        /* [B, H, D, M], or NULL; stored */
} GatedLinearGradient;

typedef struct GatedLinearKernels {
    /* out [B, N, H, M] and the final state [B, H, D, M] (Real; may be NULL) */
    void (*forward)(Real *out, Real *final_state, const GatedLinear *s);
    /* the gradients by query, key, value, log decay and state; dfinal_state may be NULL */
    void (*backward)(GatedLinearGradient d, const Real *dout, const Real *dfinal_state,
                     const GatedLinear *s);
} GatedLinearKernels;
extern const GatedLinearKernels gated_linear_plain, gated_linear_cpu, gated_linear_cpu_bf16,
    gated_linear_cuda, gated_linear_cuda_bf16;
C_FUNCTION const GatedLinearKernels *gated_linear_kernels(const Tensor *tensor);

#endif
