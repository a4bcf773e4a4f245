/* Gated linear attention: a decay per key dimension. */
#ifndef TAPEGRAD_GATED_LINEAR_ATTENTION_H
#define TAPEGRAD_GATED_LINEAR_ATTENTION_H

#include "nn/nn.h"
#include "ops/ops.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef struct GatedLinearAttentionOptions {
    /* NULL; int32 [B], in [1, N]: positions i >= key_lengths[b] leave the state unchanged, as with
     * k_i = 0 and l_i = 0 */
    Tensor *key_lengths;
    Tensor *offsets; /* NULL; packed sequences, as in CausalLinearAttentionOptions */
    Tensor *state;   /* NULL: zeros; [B, H, D, M] (with offsets [S, H, D, M]): S_0 */
} GatedLinearAttentionOptions;

/* Gated linear attention (Yang, Wang, Shen, Panda, Kim 2023, arXiv 2312.06635): linear attention
 * whose state has a decay per key dimension, as row d of S_i belongs to element d of the keys.
 *     S_i = diag(e^(l_i)) S_{i-1} + k_i v_i^T      out_i = S_i^T q_i
 * query, key [B, N, H, D], value [B, N, H, M], or query alone, packed [B, N, 3 H, D]; log_decay
 * Real [B, N, H, D], l_i <= 0; -infinity: nothing before. No feature map, no normalizer, and
 * queries are not scaled. O(N) time; saves nothing but its arguments. final_state as in
 * op_causal_linear_attention, [B, H, D, M]. On CUDA the elements of log_decay are not read: results
 * are NaN where they are out of range. */
Tensor *op_gated_linear_attention(Tape *tape, Tensor *query, Tensor *key, Tensor *value,
                                  Tensor *log_decay, GatedLinearAttentionOptions options,
                                  Tensor **final_state);

/* A field left 0 means its default, the first value in its comment. */
typedef struct GatedLinearConfig {
    int64_t decay_rank; /* 16; of the decay's projection, 1 or more */
    double temperature; /* 16; more than 0: e^l is sigmoid to the power of 1 / temperature */
} GatedLinearConfig;

/* op_gated_linear_attention, queries / sqrt D, with the decay of the paper's section 4.4 from the
 * layer's input x:
 *     l = log sigmoid(x W1^T W2^T + b) / temperature
 * with the weights decay.down.weight, W1 [decay_rank, width], decay.up.weight, W2 [width,
 * decay_rank], and decay.up.bias. A decay of nn_gated_attention is added to l. Nothing bounds its
 * results: wrap it in nn_gated_attention, which adds a norm per head, and with output_gate the
 * paper's gate. */
const AttentionKind *nn_gated_linear_attention(Params *params, GatedLinearConfig config);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
