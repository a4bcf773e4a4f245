/* The delta rule's kernels. */
#ifndef TAPEGRAD_DELTA_KERNELS_H
#define TAPEGRAD_DELTA_KERNELS_H

#include "extend.h"

/* Arguments of the delta rule, and destinations of its gradients: see op_delta_rule. */
typedef struct DeltaRule {
    AttentionInputs x;
    const Real *beta;      /* [B, N, H] */
    const Real *log_decay; /* [B, N, H, decays], or NULL: all 0 */
    int64_t decays;        /* per position and head: 1, or D, one per key dimension */
    const Real *state;     /* [B, H, D, M], or NULL: all 0 */
} DeltaRule;
typedef struct DeltaRuleGradient {
    AttentionGradient x;
    Gradient beta, log_decay; /* [B, N, H], [B, N, H, decays] */
    Real *state;              /* [B, H, D, M], or NULL; stored */
} DeltaRuleGradient;

typedef struct DeltaKernels {
    /* out [B, N, H, M], u [B, N, H, M] (Real, saved for the backward pass) and the final state
     * [B, H, D, M] (Real; may be NULL) */
    void (*forward)(Real *out, Real *u, Real *final_state, const DeltaRule *rule);
    /* the gradients by query, key, value, beta, log decay and state; dfinal_state may be NULL */
    void (*backward)(DeltaRuleGradient d, const Real *dout, const Real *dfinal_state, const Real *u,
                     const DeltaRule *rule);
} DeltaKernels;
extern const DeltaKernels delta_plain, delta_cpu, delta_cpu_bf16, delta_cuda, delta_cuda_bf16;
C_FUNCTION const DeltaKernels *delta_kernels(const Tensor *tensor);

#endif
