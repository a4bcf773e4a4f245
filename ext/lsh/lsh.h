/* LSH attention. */
#ifndef TAPEGRAD_LSH_H
#define TAPEGRAD_LSH_H

#include "nn/nn.h"
#include "ops/ops.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef struct LshAttentionOptions {
    int64_t rounds;      /* 1: hashes, each with its own chunks; at most 64 */
    int64_t chunk;       /* 32: positions per chunk */
    int64_t buckets;     /* 2 per chunk of the N positions; even, or 1: no hashing; at most 2^20.
                          * More than 64 buckets are the pairs of two hashes, rounded up. */
    Tensor *key_lengths; /* NULL; int32 [B], in [1, N]: positions i >= key_lengths[b] are masked,
                          * and their results are 0 */
} LshAttentionOptions;

/* out_i = sum_j softmax_j(s_ij) v_j, s_ij = q_i.q_j / (|q_j| sqrt D): Reformer's LSH attention
 * (Kitaev, Kaiser, Levskaya 2020, section 2), whose keys are the normalized queries. query_key [B,
 * N, H, D] and value [B, N, H, M], or value NULL and query_key [B, N, 2 H, D] with both packed;
 * returns [B, N, H, M]. Each round sorts the positions by bucket and splits them into chunks. The
 * sum runs over the j < i (a causal mask) that in at least one round are in i's bucket, and in i's
 * chunk or the chunk before. Without such j, out_i = v_i. Each call draws random hashes from the
 * tape's generator; no gradient flows through them. O(N rounds chunk) time, O(N rounds) memory. */
Tensor *op_causal_lsh_attention(Tape *tape, Tensor *query_key, Tensor *value,
                                LshAttentionOptions options);
/* The same over j != i, without a causal mask. */
Tensor *op_lsh_attention(Tape *tape, Tensor *query_key, Tensor *value, LshAttentionOptions options);

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
