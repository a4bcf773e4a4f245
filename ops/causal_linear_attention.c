/* Causal linear attention (Katharopoulos et al. 2020, Transformers are RNNs, equations 8 to 15)
 *
 * Of one sequence and one head; positions i and j run from 1 to N, queries and keys have D
 * elements, values M. With the feature map phi(x) = elu(x) + 1, that is x + 1 for x > 0 and e^x for
 * x <= 0, let a_i = phi(q_i) and b_j = phi(k_j).
 *
 * Forward
 *     num_i = sum_{j<=i} (a_i.b_j) v_j      den_i = sum_{j<=i} a_i.b_j + eps
 *     out_i = num_i / den_i
 * The normaliser is one more column of the values that is always 1. With v~_j = [v_j, 1]
 *     num~_i = [num_i, den_i - eps] = sum_{j<=i} (a_i.b_j) v~_j
 *
 * Backward, from g_i = dL/dout_i; every d below is a derivative of L
 *   Through the quotient:
 *     dnum_i = g_i / den_i                   =: ghat_i
 *     dden_i = -(g_i.num_i) / den_i^2 = -ghat_i.out_i  =: delta_i
 *     g~_i = [ghat_i, delta_i]               the derivative by num~_i
 *   a_i is in num~_i alone, whose element m is sum_{j<=i} (a_i.b_j) v~_jm:
 *     da_i = sum_m g~_im sum_{j<=i} b_j v~_jm              = sum_{j<=i} (g~_i.v~_j) b_j
 *   b_j and v_j are in num~_i for every i >= j:
 *     db_j = sum_{i>=j} sum_m g~_im a_i v~_jm              = sum_{i>=j} (v~_j.g~_i) a_i
 *     dv_j = sum_{i>=j} (a_i.b_j) ghat_i                   = sum_{i>=j} (b_j.a_i) ghat_i
 *   Through the map, phi'(x) = 1 for x > 0 and e^x for x <= 0, which is min(1, phi(x)):
 *     dq_i <- da_i min(1, a_i)      dk_j <- db_j min(1, b_j)      dv_j as it is
 *
 * So all are the same cumulative sum with the roles permuted: with
 *     scan(x, y, w)_i = sum_{j<=i} (x_i.y_j) w_j,  scan_back the same over j >= i,
 *     num~ = scan(a, b, v~)      da = scan(g~, v~, b)
 *     db = scan_back(v~, g~, a)  dv = scan_back(b, a, ghat)
 * and a scan takes O(N) time with one matrix for state, since (x_i.y_j) w_j = (y_j w_j^T)^T x_i:
 *     T_i = T_{i-1} + y_i w_i^T      scan_i = T_i^T x_i
 *
 * Kept from the forward pass: out, which is on the tape already, and den, a number a position. */
#include "ops/causal_linear_attention.h"
#include "ops/internal.h"

static Tensor *new_scratch(Tape *tape, const Attention *attention, bool backward)
{
    int64_t count =
        DEVICE_CALL(tape_device(tape), causal_linear_attention_scratch, (attention, backward));
    return tape_scratch(tape, shape(count));
}

static void causal_linear_attention_backward(Node *node)
{
    Tensor *out = node->outputs[0], *den = node->kept[0];
    Attention attention = attention_of(node->inputs[0], node->inputs[1], node->inputs[2], NULL);
    Tensor *scratch = new_scratch(node->tape, &attention, true);
    AttentionGradient d = attention_contributions(node);
    DEVICE_CALL(out, causal_linear_attention_backward,
                (d, tape_upstream(node, 0), out->data, den->data, scratch->data, &attention));
    tape_scratch_free(node->tape, scratch);
}

Tensor *op_causal_linear_attention(Tape *tape, Tensor *query, Tensor *key, Tensor *value, Real eps)
{
    attention_check(tape, ATTENTION_LABELS("op_causal_linear_attention"), query, key, value, NULL,
                    true);
    if (!(eps >= 0))
        tape_error(tape, "op_causal_linear_attention: eps is %g, expected 0 or more", (double)eps);
    attention_cast_alike(tape, &query, &key, &value);
    Attention attention = attention_of(query, key, value, NULL);
    Tensor *out = tape_tensor_of(tape, query->type, attention_out_shape(&attention));
    Tensor *den = tape_tensor(tape, attention_row_shape(&attention));
    Tensor *scratch = new_scratch(tape, &attention, false);
    DEVICE_CALL(out, causal_linear_attention_forward,
                (out->data, den->data, scratch->data, &attention, eps));
    tape_scratch_free(tape, scratch);
    tape_record(tape, (Node){ .name = "op_causal_linear_attention",
                              .backward = causal_linear_attention_backward,
                              .inputs = { query, key, value },
                              .outputs = { out },
                              .kept = { den } });
    return out;
}
