/* The kernels of causal linear attention: see causal.c. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_CAUSAL_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_CAUSAL_H

#include "ops/attention/shared/arguments.h"

/* Elements of scratch memory that a pass needs. */
KERNEL(int64_t, causal_linear_attention_scratch, const LinearScan *scan, bool backward);

KERNEL(void, causal_linear_attention_forward, Real *out, /* [B, N, H, M] */
       Real *den,                                        /* [B, N, H], saved */
       Real *final_state,                                /* [B, H, D, M + 1], or NULL */
       Real *scratch, const LinearScan *scan);

KERNEL(void, causal_linear_attention_backward, LinearScanGradient d,
       const Real *dout,         /* [B, N, H, M] */
       const Real *dfinal_state, /* [B, H, D, M + 1], or NULL */
       const Real *out,          /* [B, N, H, M] */
       const Real *den,          /* [B, N, H] */
       Real *scratch, const LinearScan *scan);

#endif
