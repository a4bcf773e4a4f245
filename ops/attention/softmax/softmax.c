/* Softmax attention (Vaswani et al. 2017, equation 1) in tiles (Dao et al. 2022, FlashAttention),
 * for one sequence and one head: queries q_i and keys k_j have D elements, values v_j have M. Sums
 * over j run over the keys that query i sees: j < key_length, and j <= i under the causal mask.
 *
 *   s_ij = q_i.k_j / sqrt D        P_ij = e^s_ij / sum_j e^s_ij        out_i = sum_j P_ij v_j
 *
 * Forward: online softmax. A row of s is computed one tile of keys at a time. For the keys so far
 * the row holds the maximum m, the sum l = sum_j e^(s_ij - m), and o = sum_j e^(s_ij - m) v_j. No
 * exponential exceeds 1, so nothing overflows. A tile with a larger maximum m' first rescales them,
 *   l <- e^(m - m') l        o <- e^(m - m') o        m <- m'
 * because e^(s - m') = e^(m - m') e^(s - m), and then adds its own terms. After the last tile
 *   out_i = o / l        L_i = ln sum_j e^s_ij = m + ln l
 *
 * Backward. g_i is the upstream gradient of out_i. Saved for the backward pass are out and L_i, one
 * number per row, from which a tile of P is recomputed in one step: P_ij = e^(s_ij - L_i).
 *   out_i is linear in v_j with the factor P_ij:
 *     dv_j <- sum_i P_ij g_i                   dP_ij = g_i.v_j
 *   Softmax: dP_ij/ds_ik = P_ij ([j = k] - P_ik), because ln P_ij = s_ij - L_i and
 *   dL_i/ds_ik = e^s_ik / sum_j e^s_ij = P_ik. So
 *     dS_ik = sum_j dP_ij P_ij ([j = k] - P_ik) = P_ik (dP_ik - D_i),   D_i = sum_j P_ij dP_ij
 *   and D_i (not the head size D) needs no row of P:
 *     D_i = sum_j P_ij (g_i.v_j) = g_i.(sum_j P_ij v_j) = g_i.out_i
 *   s_ij is linear in q_i and in k_j:
 *     dq_i <- sum_j dS_ij k_j / sqrt D         dk_j <- sum_i dS_ij q_i / sqrt D
 * Each product above is one matrix product per tile. Of the N x N matrices P and dS only the
 * current tile is in memory.
 *
 * Accuracy: on the CPU l, o and dq are sums over blocks of 4096 keys, right to 1e-6 for millions of
 * keys. dk and dv are float32 sums over all queries, and on CUDA all are over all positions: errors
 * grow with the length, to 1e-5 at 1e5 and 1e-4 at 1e6. On the CPU masked pairs are left out of the
 * products; on CUDA their weight is 0, so a NaN or infinite value of a later position reaches
 * earlier ones of its tile. */
#include "ops/attention/softmax/softmax.h"
#include "ops/shared/internal.h"

typedef struct SoftmaxAttention {
    bool causal;
} SoftmaxAttention;

static Tensor *scratch_for(Tape *tape, const AttentionInputs *a, bool backward)
{
    return tape_scratch(
        tape, shape(DEVICE_CALL(tape_device(tape), softmax_attention_scratch, (a, backward))));
}

static void softmax_attention_backward(Node *node)
{
    const SoftmaxAttention *saved = node->attributes;
    Tensor **in = node->inputs, *out = node->outputs[0], *log_sum = node->saved[0];
    AttentionInputs a = attention_of(in[0], in[1], in[2], in[3], PACKED_QUERY);
    const Real *dout = tape_upstream(node, 0);
    AttentionGradient d = attention_contributions(node, PACKED_QUERY);
    Tensor *scratch = scratch_for(node->tape, &a, true);
    KERNEL_CALL(out, softmax_attention_backward,
                (d, dout, out->data, log_sum->data, scratch->data, &a, saved->causal));
    tape_scratch_free(node->tape, scratch);
}

static Tensor *softmax_attention(Tape *tape, AttentionLabels labels, Tensor *query, Tensor *key,
                                 Tensor *value, Tensor *key_lengths, bool causal)
{
    attention_check(tape, labels, query, key, value, key_lengths, causal, PACKED_QUERY);
    attention_cast_alike(tape, &query, &key, &value);
    AttentionInputs a = attention_of(query, key, value, key_lengths, PACKED_QUERY);
    Tensor *out = tape_tensor_of(tape, query->type, attention_out_shape(&a));
    Tensor *log_sum = tape_tensor(tape, attention_row_shape(&a));
    Tensor *scratch = scratch_for(tape, &a, false);
    KERNEL_CALL(out, softmax_attention_forward,
                (out->data, log_sum->data, scratch->data, &a, causal));
    tape_scratch_free(tape, scratch);

    SoftmaxAttention saved = { causal };
    tape_record(tape, (Node){ .name = labels.name,
                              .backward = softmax_attention_backward,
                              .inputs = { query, key, value, key_lengths },
                              .outputs = { out },
                              .saved = { log_sum },
                              .attributes = tape_save(tape, &saved, sizeof saved) });
    return out;
}

Tensor *op_causal_softmax_attention(Tape *tape, Tensor *query, Tensor *key, Tensor *value,
                                    Tensor *key_lengths)
{
    const AttentionLabels labels = ATTENTION_LABELS("op_causal_softmax_attention");
    return softmax_attention(tape, labels, query, key, value, key_lengths, true);
}

Tensor *op_softmax_attention(Tape *tape, Tensor *query, Tensor *key, Tensor *value,
                             Tensor *key_lengths)
{
    const AttentionLabels labels = ATTENTION_LABELS("op_softmax_attention");
    return softmax_attention(tape, labels, query, key, value, key_lengths, false);
}
