/* The kernels of this room. scratch: the elements of scratch memory that a pass needs. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_KERNELS_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_KERNELS_H

#include "ops/attention/shared/arguments.h"

/* With a causal mask: causal.c */
OLD_KERNEL(int64_t, causal_linear_attention_scratch, const LinearScan *scan, bool backward);

OLD_KERNEL(void, causal_linear_attention_forward, Real *out, /* [B, N, H, M] */
           Real *den,                                        /* [B, N, H], saved */
           Real *final_state,                                /* [B, H, D, M + 1], or NULL */
           Real *scratch, const LinearScan *scan);

OLD_KERNEL(void, causal_linear_attention_backward, LinearScanGradient d,
           const Real *dout,         /* [B, N, H, M] */
           const Real *dfinal_state, /* [B, H, D, M + 1], or NULL */
           const Real *out,          /* [B, N, H, M] */
           const Real *den,          /* [B, N, H] */
           Real *scratch, const LinearScan *scan);

/* Without a mask: noncausal.c */
OLD_KERNEL(int64_t, linear_attention_scratch, const LinearScan *scan);

/* out [B, N, H, M]; den [B, N, H], saved for the backward pass */
OLD_KERNEL(void, linear_attention_forward, Real *out, Real *den, Real *scratch,
           const LinearScan *scan);

/* dout, out [B, N, H, M]; den [B, N, H] */
OLD_KERNEL(void, linear_attention_backward, AttentionGradient d, const Real *dout, const Real *out,
           const Real *den, Real *scratch, const LinearScan *scan);

#endif
