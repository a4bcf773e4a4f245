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

/* T = sum_j y_j w_j^T over the n_y positions of each sequence; o_i = T^T x_i for its n_x positions.
 * x, y have Y columns, w, o W. T is stored transposed, [B, H, W, Y]. */
static void attend_to_all(const AttentionInputs *s, HeadRows x, int64_t n_x, HeadRows y, HeadRows w,
                          int64_t n_y, double *T, HeadRows o)
{
    const int64_t Y = y.columns, W = w.columns, H = s->H;
    EACH_ROW(head, s->B * H, (n_x + n_y) * Y * W) {
        const int64_t b = head / H, h = head % H;
        double *T_head = T + head * W * Y;
        for (int64_t k = 0; k < W * Y; k++)
            T_head[k] = 0;
        for (int64_t j = b * n_y; j < (b + 1) * n_y; j++)
            for (int64_t c = 0; c < W; c++)
                for (int64_t r = 0; r < Y; r++)
                    T_head[c * Y + r] +=
                        (double)y.data[(j * H + h) * Y + r] * (double)w.data[(j * H + h) * W + c];
        for (int64_t i = b * n_x; i < (b + 1) * n_x; i++)
            for (int64_t c = 0; c < W; c++) {
                double sum = 0;
                SUM(+, sum)
                for (int64_t r = 0; r < Y; r++)
                    sum += T_head[c * Y + r] * (double)x.data[(i * H + h) * Y + r];
                o.data[(i * H + h) * W + c] = (Real)sum;
            }
    }
}

void linear_attention_forward_plain(Real *out, Real *den, const LinearScan *s)
{
    const AttentionInputs *x = &s->x;
    const int64_t P = query_positions(x), K = key_positions(x), D = x->D, W = x->M + 1;
    Real *memory = device_workspace(state_size(x) + (P + K) * x->H * (D + W));
    Real *next = memory + state_size(x);
    double *S = (double *)memory;
    const HeadRows a = next_rows(&next, x, P, D), num = next_rows(&next, x, P, W);
    const HeadRows b = next_rows(&next, x, K, D), v = next_rows(&next, x, K, W);
    read_queries(a, s);
    read_keys(b, s);
    read_values(v, s);
    attend_to_all(x, a, x->N, b, v, x->keys, S, num);
    write_out(out, den, num, s);
    device_workspace_free(memory);
}

void linear_attention_backward_plain(AttentionGradient d, const Real *dout, const Real *out,
                                     const Real *den, const LinearScan *s)
{
    const AttentionInputs *x = &s->x;
    const int64_t P = query_positions(x), K = key_positions(x), D = x->D, W = x->M + 1;
    Real *memory = device_workspace(state_size(x) + (P + K) * x->H * 2 * (D + W));
    Real *next = memory + state_size(x);
    double *T = (double *)memory; /* S^T, R^T, R */
    const HeadRows a = next_rows(&next, x, P, D), dnum = next_rows(&next, x, P, W);
    const HeadRows b = next_rows(&next, x, K, D), v = next_rows(&next, x, K, W);
    const HeadRows da = next_rows(&next, x, P, D), db = next_rows(&next, x, K, D);
    const HeadRows dv = next_rows(&next, x, K, W);
    read_queries(a, s);
    read_keys(b, s);
    read_values(v, s);
    read_dnum(dnum, dout, out, den, s);
    attend_to_all(x, dnum, x->N, v, b, x->keys, T, da);
    write_dquery(d.query, da, a, s);
    attend_to_all(x, v, x->keys, dnum, a, x->N, T, db);
    write_dkey(d.key, db, b, s);
    attend_to_all(x, b, x->keys, a, dnum, x->N, T, dv);
    write_dvalue(d.value, dv, s);
    device_workspace_free(memory);
}

static const AttentionLabels linear_labels = ATTENTION_LABELS("op_linear_attention");

static void linear_attention_backward(Node *node)
{
    Tensor *out = node->outputs[0], *den = node->saved[0];
    const LinearScan scan =
        linear_scan_of(node->inputs, *(const CausalLinearAttentionOptions *)node->attributes);
    AttentionGradient d = attention_contributions(node, PACKED_QUERY);
    kernels_of(out)->linear_attention_backward(d, tape_upstream(node, 0), out->data, den->data,
                                               &scan);
}

Tensor *op_linear_attention(Tape *tape, Tensor *query, Tensor *key, Tensor *value,
                            LinearAttentionOptions options)
{
    attention_check(tape, linear_labels, query, key, value, options.key_lengths, false,
                    PACKED_QUERY);
    linear_attention_check_options(tape, linear_labels, options.features, options.eps);
    attention_cast_alike(tape, &query, &key, &value);
    const CausalLinearAttentionOptions attributes = { .features = options.features,
                                                      .eps = options.eps };
    Tensor *const inputs[6] = { query, key, value, options.key_lengths };
    const LinearScan scan = linear_scan_of(inputs, attributes);
    Tensor *out = tape_tensor_of(tape, query->type, attention_out_shape(&scan.x));
    Tensor *den = tape_tensor(tape, attention_row_shape(&scan.x));
    kernels_of(out)->linear_attention_forward(out->data, den->data, &scan);
    tape_record(tape, (Node){ .name = linear_labels.name,
                              .backward = linear_attention_backward,
                              .inputs = { query, key, value, options.key_lengths },
                              .outputs = { out },
                              .saved = { den },
                              .attributes = tape_save(tape, &attributes, sizeof attributes) });
    return out;
}
