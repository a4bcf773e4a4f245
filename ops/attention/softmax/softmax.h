/* The kernels of softmax attention: see softmax.c. */
#ifndef TAPEGRAD_OPS_ATTENTION_SOFTMAX_SOFTMAX_H
#define TAPEGRAD_OPS_ATTENTION_SOFTMAX_SOFTMAX_H

#include "ops/attention/shared/arguments.h"

/* Size of the kernels' scratch memory in Reals: O(N), forward and backward. */
DEVICE_FUNCTION(int64_t, softmax_attention_scratch, const AttentionInputs *attention,
                bool backward);

OLD_KERNEL(void, softmax_attention_forward, Real *out, /* [B, N, H, M] */
           Real *log_sum,                              /* [B, N, H], saved for the backward pass */
           Real *scratch, const AttentionInputs *attention, bool causal);

OLD_KERNEL(void, softmax_attention_backward, AttentionGradient d,
           const Real *dout,    /* [B, N, H, M] */
           const Real *out,     /* [B, N, H, M] */
           const Real *log_sum, /* [B, N, H] */
           Real *scratch, const AttentionInputs *attention, bool causal);
#endif
