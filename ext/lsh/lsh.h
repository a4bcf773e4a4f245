/* LSH attention as kinds of attention. */
#ifndef TAPEGRAD_LSH_H
#define TAPEGRAD_LSH_H

#include "nn/nn.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* op_causal_lsh_attention, op_lsh_attention: queries are keys; they share a weight */
#define ATTENTION_CAUSAL_LSH (&nn_causal_lsh_attention)
#define ATTENTION_LSH (&nn_lsh_attention)
extern const struct AttentionFunctions nn_causal_lsh_attention, nn_lsh_attention;

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
