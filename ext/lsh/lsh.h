/* LSH attention as kinds of attention. */
#ifndef TAPEGRAD_LSH_H
#define TAPEGRAD_LSH_H

#include "nn/nn.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* A field left 0 means its default, the first value in its comment. */
typedef struct LshConfig {
    int64_t rounds;  /* 1: hash rounds */
    int64_t chunk;   /* 32: positions per chunk */
    int64_t buckets; /* 2 per chunk of the sequence; even, or 1: no hashing */
} LshConfig;

/* op_causal_lsh_attention, op_lsh_attention: queries are keys; they share a weight. */
const AttentionKind *nn_causal_lsh_attention(Params *params, LshConfig config);
const AttentionKind *nn_lsh_attention(Params *params, LshConfig config);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
