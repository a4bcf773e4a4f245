/* The delta rule. */
#ifndef TAPEGRAD_DELTA_H
#define TAPEGRAD_DELTA_H

#include "nn/nn.h"
#include "ops/ops.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef struct DeltaRuleOptions {
    /* NULL: none; Real [B, N, H], or one per key dimension, [B, N, H, D]; l_i <= 0; -infinity:
     * nothing before */
    Tensor *log_decay;
    /* NULL; int32 [B], in [1, N]: positions i >= key_lengths[b] leave the state unchanged, as with
     * beta_i = 0 and l_i = 0 */
    Tensor *key_lengths;
    Tensor *offsets; /* NULL; packed sequences, as in CausalLinearAttentionOptions */
    Tensor *state;   /* NULL: zeros; [B, H, D, M] (with offsets [S, H, D, M]): S_0 */
} DeltaRuleOptions;

/* The delta rule (Yang et al. 2024, DeltaNet, arXiv 2406.06484), with a decay Gated DeltaNet (Yang,
 * Kautz, Hatamizadeh 2024, arXiv 2412.06464), with one per key dimension Kimi Delta Attention (Kimi
 * Team 2025, arXiv 2510.26692): the state maps keys to values, and position i corrects what it
 * returns for k_i by the fraction beta_i of the error. With E_i = diag(e^(l_i))
 *     S_i = E_i S_{i-1} + k_i u_i^T      u_i = beta_i (v_i - (E_i S_{i-1})^T k_i)
 *     out_i = S_i^T q_i
 * query, key [B, N, H, D], value [B, N, H, M], or query alone as above; beta Real [B, N, H], in [0,
 * 2]. Keys should have length 1 (op_l2_normalize), else the state may grow without bound; queries
 * are not scaled. O(N) time; saves out and u, one row of M Reals per position and head. final_state
 * as in op_causal_linear_attention, [B, H, D, M]. On CUDA the elements of beta and log_decay are
 * not read: results are NaN where they are out of range. */
Tensor *op_delta_rule(Tape *tape, Tensor *query, Tensor *key, Tensor *value, Tensor *beta,
                      DeltaRuleOptions options, Tensor **final_state);

/* A field left 0 means its default, the first value in its comment. */
typedef struct DeltaRuleConfig {
    double max_beta; /* 1; in (0, 2] */
    /* 0: no decay but that of nn_gated_attention; the rank of a decay per key dimension, as in Kimi
     * Delta Attention: l = -e^A softplus(x Wd^T Wu^T + b + c), A per head and 0 at first, and c_d
     * such that the rates softplus(c_d) of a head's key dimensions fall from 1/2 to 1/1024, in
     * equal ratios */
    int64_t decay_rank;
} DeltaRuleConfig;

/* op_delta_rule of queries and keys of length 1, queries / sqrt D; beta = max_beta sigmoid(x Wb^T +
 * bb), with the weights beta.weight and beta.bias; of a decay per key dimension decay.down.weight,
 * decay.up.weight, decay.up.bias and decay.log_rate. Nothing bounds its results: wrap it in
 * nn_gated_attention, which adds a norm per head. */
const AttentionKind *nn_delta_rule_attention(Params *params, DeltaRuleConfig config);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
