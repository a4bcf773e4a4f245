/* Linear attention without a causal mask (Katharopoulos et al. 2020, equations 4 to 7), in O(N)
 *
 * For one sequence and one head, in the notation of causal.c: a_i = phi(q_i), b_j = phi(k_j),
 * phi(x) = x + 1 for x > 0 and e^x for x <= 0; j runs over the sequence's keys, all or the first
 * key_lengths of them.
 *
 * Forward
 *     S = sum_j b_j v_j^T      z = sum_j b_j
 *     den_i = a_i.z + eps      out_i = S^T a_i / den_i
 *
 * Backward, from g_i = dL/dout_i
 *   Through the quotient, as in the causal case:
 *     dnum_i = g_i / den_i       the derivative by num_i = S^T a_i
 *     dden_i = -dnum_i.out_i     the derivative by den_i
 *   a_i is in both:
 *     da_i = S dnum_i + dden_i z
 *   S and z are in the num_i and den_i of every i:
 *     R = dL/dS = sum_i a_i dnum_i^T      r = dL/dz = sum_i dden_i a_i
 *   v_j and b_j are in S, and b_j in z:
 *     db_j = R v_j + r      dv_j = R^T b_j
 *   Through the feature map, phi' = min(1, phi):
 *     dq_i <- da_i min(1, a_i)      dk_j <- db_j min(1, b_j)      and nothing <- to masked keys
 *
 * Accuracy: on the CPU S~ and R~ are sums over blocks of 4096 positions, right to 1e-6 for millions
 * of positions.
 *
 * Saved for the backward pass: out, already on the tape, and den, one number per position. */
#include "ops/attention/linear/kernels.h"
#include "ops/shared/internal.h"

static const AttentionLabels labels = ATTENTION_LABELS("op_linear_attention");

static Tensor *new_scratch(Tape *tape, const Tensor *out, const LinearScan *scan)
{
    int64_t count = KERNEL_CALL(out, linear_attention_scratch, (scan));
    return tape_scratch(tape, shape(count));
}

static void linear_attention_backward(Node *node)
{
    Tensor *out = node->outputs[0], *den = node->saved[0];
    const LinearScan scan =
        linear_scan_of(node->inputs, *(const CausalLinearAttentionOptions *)node->attributes);
    Tensor *scratch = new_scratch(node->tape, out, &scan);
    AttentionGradient d = attention_contributions(node, PACKED_QUERY);
    KERNEL_CALL(out, linear_attention_backward,
                (d, tape_upstream(node, 0), out->data, den->data, scratch->data, &scan));
    tape_scratch_free(node->tape, scratch);
}

Tensor *op_linear_attention(Tape *tape, Tensor *query, Tensor *key, Tensor *value,
                            LinearAttentionOptions options)
{
    attention_check(tape, labels, query, key, value, options.key_lengths, false, PACKED_QUERY);
    linear_attention_check_options(tape, labels, options.features, options.eps);
    attention_cast_alike(tape, &query, &key, &value);
    const CausalLinearAttentionOptions attributes = { .features = options.features,
                                                      .eps = options.eps };
    Tensor *const inputs[6] = { query, key, value, options.key_lengths };
    const LinearScan scan = linear_scan_of(inputs, attributes);
    Tensor *out = tape_tensor_of(tape, query->type, attention_out_shape(&scan.x));
    Tensor *den = tape_tensor(tape, attention_row_shape(&scan.x));
    Tensor *scratch = new_scratch(tape, out, &scan);
    KERNEL_CALL(out, linear_attention_forward, (out->data, den->data, scratch->data, &scan));
    tape_scratch_free(tape, scratch);
    tape_record(tape, (Node){ .name = labels.name,
                              .backward = linear_attention_backward,
                              .inputs = { query, key, value, options.key_lengths },
                              .outputs = { out },
                              .saved = { den },
                              .attributes = tape_save(tape, &attributes, sizeof attributes) });
    return out;
}
