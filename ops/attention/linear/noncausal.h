/* The kernels of linear attention without a causal mask: see noncausal.c. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_NONCAUSAL_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_NONCAUSAL_H

#include "ops/attention/shared/arguments.h"

/* Elements of scratch memory that a pass needs. */
KERNEL(int64_t, linear_attention_scratch, const LinearScan *scan);

/* out [B, N, H, M]; den [B, N, H], saved for the backward pass */
KERNEL(void, linear_attention_forward, Real *out, Real *den, Real *scratch, const LinearScan *scan);

/* dout, out [B, N, H, M]; den [B, N, H] */
KERNEL(void, linear_attention_backward, AttentionGradient d, const Real *dout, const Real *out,
       const Real *den, Real *scratch, const LinearScan *scan);
#endif
