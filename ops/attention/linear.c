/* Linear attention without a causal mask (Katharopoulos et al. 2020, equations 4 to 7), in O(N)
 *
 * For one sequence and one head, in the notation of causal_linear.c: a_i = phi(q_i), b_j =
 * phi(k_j), phi(x) = x + 1 for x > 0 and e^x for x <= 0; j runs over the sequence's keys, all or
 * the first key_lengths of them.
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
 * With v~_j = [v_j, 1] and dnum~_i = [dnum_i, dden_i], z and r are the last columns of S~ and R~,
 * and forward and backward are one product with the roles permuted: with
 *     attend_to_all(x, y, w)_i = sum_j (x_i.y_j) w_j = (sum_j y_j w_j^T)^T x_i
 *     num~ = attend_to_all(a, b, v~)      da = attend_to_all(dnum~, v~, b)
 *     db = attend_to_all(v~, dnum~, a)    dv = attend_to_all(b, a, dnum)
 *
 * Accuracy: the plain kernels sum in double; on the CPU S~ and R~ are sums over blocks of 4096
 * positions, right to 1e-6 for millions of positions.
 *
 * Saved for the backward pass: out, already on the tape, and den, one number per position. */
#include "ops/attention/linear_rows.h"
#include "ops/kernels.h"

void linear_attention_forward_plain(Real *out, Real *den, const LinearScan *s)
{
    const AttentionInputs *x = &s->x;
    const int64_t N = x->N, keys = x->keys, D = x->D, W = x->M + 1, size = D * W + 2 * (D + W);
    double *memory = attention_workspace(x->B * x->H * size);
    EACH_ROW(head, x->B * x->H, (N + keys) * D * W) {
        const int64_t sequence = head / x->H, h = head % x->H;
        double *S = memory + head * size;
        Real *a = (Real *)(S + D * W), *b = a + D, *v = b + D, *num = v + W;
        memset(S, 0, (size_t)(D * W) * sizeof *S);
        for (int64_t j = sequence * keys; j < (sequence + 1) * keys; j++) {
            read_key_value(b, v, s, j, h);
            add_outer_product(S, b, D, v, W);
        }
        for (int64_t i = sequence * N; i < (sequence + 1) * N; i++) {
            read_query(a, s, i, h);
            apply_state(num, S, a, D, W);
            write_out(out, den, num, s, i, h);
        }
    }
    attention_workspace_free(memory);
}

void linear_attention_backward_plain(AttentionGradient d, const Real *dout, const Real *out,
                                     const Real *den, const LinearScan *s)
{
    const AttentionInputs *x = &s->x;
    const int64_t N = x->N, keys = x->keys, D = x->D, W = x->M + 1, size = 3 * D * W + 3 * (D + W);
    double *memory = attention_workspace(x->B * x->H * size);
    EACH_ROW(head, x->B * x->H, 3 * (N + keys) * D * W) {
        const int64_t sequence = head / x->H, h = head % x->H;
        double *S = memory + head * size, *R = S + D * W, *R_t = R + D * W; /* S^T, R, R^T */
        Real *a = (Real *)(R_t + D * W), *b = a + D, *v = b + D, *dnum = v + W;
        Real *da = dnum + W, *db = da, *dv = da + D;
        memset(S, 0, (size_t)(3 * D * W) * sizeof *S);
        for (int64_t j = sequence * keys; j < (sequence + 1) * keys; j++) {
            read_key_value(b, v, s, j, h);
            add_outer_product(S, v, W, b, D);
        }
        for (int64_t i = sequence * N; i < (sequence + 1) * N; i++) {
            read_query(a, s, i, h);
            read_dnum(dnum, dout, out, den, s, i, h);
            apply_state(da, S, dnum, W, D);
            write_dquery(d.query, da, a, s, i, h);
            add_outer_product(R_t, dnum, W, a, D);
            add_outer_product(R, a, D, dnum, W);
        }
        for (int64_t j = sequence * keys; j < (sequence + 1) * keys; j++) {
            read_key_value(b, v, s, j, h);
            apply_state(db, R_t, v, W, D);
            apply_state(dv, R, b, D, W);
            write_dkey_dvalue(&d, db, b, dv, s, j, h);
        }
    }
    attention_workspace_free(memory);
}

static const AttentionLabels linear_labels =
    ATTENTION_LABELS("op_linear_attention", "query", "key");

static void linear_attention_backward(Node *node)
{
    Tensor *out = node->outputs[0], *den = node->saved[0];
    const LinearScan scan =
        linear_scan_of(node->inputs, *(const CausalLinearAttentionOptions *)node->attributes);
    AttentionGradient d = op_attention_contributions(node, PACKED_QUERY);
    kernels_of(out)->linear_attention_backward(d, tape_upstream(node, 0), out->data, den->data,
                                               &scan);
}

Tensor *op_linear_attention(Tape *tape, Tensor *query, Tensor *key, Tensor *value,
                            LinearAttentionOptions options)
{
    op_attention_check(tape, linear_labels, query, key, value, options.key_lengths, false,
                       PACKED_QUERY);
    linear_attention_check_options(tape, linear_labels, options.features, options.eps);
    op_attention_cast_alike(tape, &query, &key, &value);
    const CausalLinearAttentionOptions attributes = { .features = options.features,
                                                      .eps = options.eps };
    Tensor *const inputs[7] = { query, key, value, options.key_lengths };
    const LinearScan scan = linear_scan_of(inputs, attributes);
    const AttentionInputs *x = &scan.x;
    Tensor *out = tape_tensor_of(tape, query->type, shape(x->B, x->N, x->H, x->M));
    Tensor *den = tape_tensor(tape, shape(x->B, x->N, x->H));
    kernels_of(out)->linear_attention_forward(out->data, den->data, &scan);
    tape_record(tape, (Node){ .name = linear_labels.name,
                              .backward = linear_attention_backward,
                              .inputs = { query, key, value, options.key_lengths },
                              .outputs = { out },
                              .saved = { den },
                              .attributes = tape_save(tape, &attributes, sizeof attributes) });
    return out;
}
