/* Causal linear attention (Katharopoulos et al. 2020, Transformers are RNNs, equations 8 to 15)
 *
 * For one sequence and one head: positions i and j run from 1 to N; queries and keys have D
 * elements, values M. With the feature map phi(x) = elu(x) + 1, that is x + 1 for x > 0 and e^x for
 * x <= 0, let a_i = phi(q_i) and b_j = phi(k_j).
 *
 * Forward
 *     num_i = sum_{j<=i} (a_i.b_j) v_j      den_i = sum_{j<=i} a_i.b_j + eps
 *     out_i = num_i / den_i
 * The normalizer den is one more column of the values that is always 1. With v~_j = [v_j, 1]
 *     num~_i = [num_i, den_i - eps] = sum_{j<=i} (a_i.b_j) v~_j
 *
 * Backward, from g_i = dL/dout_i; every d below is a derivative of L
 *   Through the quotient:
 *     dnum_i = g_i / den_i
 *     dden_i = -(g_i.num_i) / den_i^2 = -dnum_i.out_i
 *     dnum~_i = [dnum_i, dden_i]             the derivative by num~_i
 *   a_i is in num~_i alone, whose element m is sum_{j<=i} (a_i.b_j) v~_jm:
 *     da_i = sum_m dnum~_im sum_{j<=i} b_j v~_jm           = sum_{j<=i} (dnum~_i.v~_j) b_j    (13)
 *   b_j and v_j are in num~_i for every i >= j:
 *     db_j = sum_{i>=j} sum_m dnum~_im a_i v~_jm           = sum_{i>=j} (v~_j.dnum~_i) a_i    (14)
 *     dv_j = sum_{i>=j} (a_i.b_j) dnum_i                   = sum_{i>=j} (b_j.a_i) dnum_i      (15)
 *   Through the feature map, phi'(x) = 1 for x > 0 and e^x for x <= 0, which is min(1, phi(x)):
 *     dq_i <- da_i min(1, a_i)      dk_j <- db_j min(1, b_j)      values have no feature map
 *
 * So all are the same cumulative sum with the roles permuted: with
 *     scan(x, y, w)_i = sum_{j<=i} (x_i.y_j) w_j,  scan_reverse the same over j >= i,
 *     num~ = scan(a, b, v~)              da = scan(dnum~, v~, b)
 *     db = scan_reverse(v~, dnum~, a)    dv = scan_reverse(b, a, dnum)
 * and a scan takes O(N) time with one matrix as its state, since (x_i.y_j) w_j = (y_j w_j^T)^T x_i:
 *     T_i = T_{i-1} + y_i w_i^T      scan_i = T_i^T x_i
 *
 * An initial state S~_0 = [S_0, z_0], the sums of b_j v_j^T and of b_j over earlier positions,
 * starts those of num~ and da. The final state S~_N = S~_0 + sum_j b_j v~_j^T is a second output.
 * Its upstream gradient F~, if any, is part of every R~_j = dL/dS~_j, so it starts the sums of db
 * and dv; R_j is R~_j without the normalizer's column:
 *     R~_j = F~ + sum_{i>=j} a_i dnum~_i^T
 *     db_j = R~_j v~_j      dv_j = R_j^T b_j      dS~_0 <- R~_1
 *
 * Several positions can be processed at once. Let X, Y, W hold C positions as rows, and T the state
 * before them:
 *     scan = X T + tril(X Y^T) W      T <- T + Y^T W
 * C = 1 is the recurrent form, C > 1 the chunked form; with C = N there is no T, which leaves the
 * quadratic form. A chunk's Y^T W does not depend on earlier chunks: a prefix sum over chunks, or
 * over segments of several chunks, yields every T, and then all results are independent. This is
 * the chunk-parallel form.
 *
 * A decay, one number l_i <= 0 per position and head, makes the past fade: before position i adds
 * its outer product, the state is multiplied by e^(l_i). With c_i = l_1 + .. + l_i
 *     scan(x, y, w)_i = sum_{j<=i} e^(c_i - c_j) (x_i.y_j) w_j    T_i = e^(l_i) T_{i-1} + y_i w_i^T
 * and e^(c_i - c_j), one factor per pair, is the same in num~, da, db and dv: the four scans decay
 * alike. In reverse, T is multiplied by e^(l_i) after position i: so dS~_0 <- e^(l_1) R~_1. The
 * normalizer's column decays with the others: the weights of the v_j still add up to 1. Masked
 * positions do not decay. As for l_i: let Z_i = e^(l_i) S~_{i-1} and R'_i = e^(l_{i+1}) R~_{i+1}
 * (R'_N = F~) be the states that do not contain position i yet. Then
 *     S~_i = Z_i + b_i v~_i^T      R~_i = R'_i + a_i dnum~_i^T      dl_i = <Z_i, R~_i>
 *     dl_i     = <Z_i, R~_i>  = <Z_i, R'_i> + a_i.(Z_i dnum~_i)
 *     dl_{i+1} = <S~_i, R'_i> = <Z_i, R'_i> + b_i.(R'_i v~_i)
 * and the difference of these two leaves a cumulative sum of one number per position:
 *     dl_1 = <S~_0, dS~_0>      dl_{i+1} = dl_i - a_i.(Z_i dnum~_i) + b_i.(R'_i v~_i)
 * Every term has a decay. With S~_i and R~_i in place of Z_i and R'_i, both products would have one
 * term more, the pair of i with itself: it cancels, but its rounding error stays, and that exceeds
 * dl_i where the past fades fast. l_i = -infinity starts a new sequence: dl_i = 0, and the sum
 * restarts there.
 *
 * Without the normalizer (unnormalized: RetNet, Mamba-2, Gated Linear Attention), out_i = num_i,
 * dnum_i = g_i and v~ = v.
 *
 * For keys masked by key_lengths, b_j counts as 0: they add nothing to the sums, and nothing is
 * contributed to their key and value. With offsets, each sequence is one as above.
 *
 * Other feature maps: relu, phi'(x) = 1 for x > 0, else 0; softplus, phi(x) = ln(1 + e^x),
 * phi'(x) = 1 / (1 + e^-x) = 1 - e^-phi(x); identity, phi'(x) = 1. Each phi' is known from phi(x).
 *
 * Accuracy: the plain kernels have states in double; the backends' are sums in Real over all
 * positions, whose error grows with the length (ops.h).
 *
 * Saved for the backward pass: out, already on the tape, and den, one number per position. */
#include "ops/attention/linear_rows.h"
#include "ops/kernels.h"
#include "ops/shared/indices.h"

/* One step of scan(x, y, w) or, from the last position to the first, of scan_reverse(x, y, w), but
 * for the decay:  T <- T + y w^T      o = T^T x      x, y [Y], w, o [W] */
static void scan(const Real *x, const Real *y, const Real *w, int64_t Y, int64_t W, double *T,
                 Real *o)
{
    add_outer_product(T, y, Y, w, W);
    apply_state(o, T, x, Y, W);
}

void causal_linear_attention_forward_plain(Real *out, Real *den, Real *final_state,
                                           const LinearScan *s)
{
    const AttentionInputs *x = &s->x;
    const int64_t D = x->D, W = linear_scan_columns(s), size = D * W + 2 * (D + W);
    double *memory = attention_workspace(x->B * x->H * size);
    EACH_ROW(head, x->B * x->H, x->N * D * W) {
        const Head at = head_of(x, head);
        double *S = memory + head * size;
        Real *a = (Real *)(S + D * W), *b = a + D, *v = b + D, *num = v + W;
        read_state(S, state_of_head(s->state, head, D * W), D, W, true);
        for (int64_t i = at.begin; i < at.end; i++) {
            read_query(a, s, i, at.h);
            read_key_value(b, v, s, i, at.h);
            decay_state(S, D * W, read_decay(s, i, at.h));
            scan(a, b, v, D, W, S, num);
            write_out(out, den, num, s, i, at.h);
        }
        write_state(final_state, head, S, D, W, true);
    }
    attention_workspace_free(memory);
}

void contribute_log_decay(Gradient dlog_decay, double dl_1, const double *differences,
                          const LinearScan *s, int64_t head)
{
    const Head at = head_of(&s->x, head);
    double dl_i = dl_1;
    for (int64_t i = at.begin; i < at.end; i++) {
        const int64_t row = i * s->x.H + at.h;
        if (read_decay(s, i, at.h) == 0)
            dl_i = 0;
        gradient_add(dlog_decay, row, key_is_masked(&s->x, i) ? 0 : (Real)dl_i);
        dl_i -= differences[row];
    }
}

void causal_linear_attention_backward_plain(LinearScanGradient d, const Real *dout,
                                            const Real *dfinal_state, const Real *out,
                                            const Real *den, const LinearScan *s)
{
    const AttentionInputs *x = &s->x;
    const int64_t D = x->D, W = linear_scan_columns(s), size = 2 * D * W + 3 * (D + W);
    const int64_t positions = (x->offsets ? 1 : x->B) * x->N;
    double *memory = attention_workspace((x->B * size + positions) * x->H);
    double *dl = memory + x->B * x->H * size; /* [B, N, H]: dl_i - dl_{i+1} */
    EACH_ROW(head, x->B * x->H, 3 * x->N * D * W) {
        const Head at = head_of(x, head);
        const Real *state = state_of_head(s->state, head, D * W);
        const Real *dstate = state_of_head(dfinal_state, head, D * W);
        double *R = memory + head * size, *T = R + D * W, dl_1 = 0; /* T: S^T, then R^T */
        Real *a = (Real *)(T + D * W), *b = a + D, *v = b + D, *dnum = v + W;
        Real *da = dnum + W, *db = da, *dv = da + D;
        read_state(T, state, D, W, false);
        for (int64_t i = at.begin; i < at.end; i++) {
            read_query(a, s, i, at.h);
            read_key_value(b, v, s, i, at.h);
            read_dnum(dnum, dout, out, den, s, i, at.h);
            decay_state(T, D * W, read_decay(s, i, at.h));
            if (d.log_decay.data)
                dl[i * x->H + at.h] = state_product(T, dnum, W, a, D);
            scan(dnum, v, b, W, D, T, da);
            write_dquery(d.x.query, da, a, s, i, at.h);
        }
        read_state(T, dstate, D, W, false);
        read_state(R, dstate, D, W, true);
        for (int64_t i = at.end - 1; i >= at.begin; i--) {
            read_query(a, s, i, at.h);
            read_key_value(b, v, s, i, at.h);
            read_dnum(dnum, dout, out, den, s, i, at.h);
            if (d.log_decay.data)
                dl[i * x->H + at.h] -= state_product(T, v, W, b, D);
            scan(v, dnum, a, W, D, T, db);
            scan(b, a, dnum, D, W, R, dv);
            write_dkey_dvalue(&d.x, db, b, dv, s, i, at.h);
            decay_state(T, D * W, read_decay(s, i, at.h));
            decay_state(R, D * W, read_decay(s, i, at.h));
        }
        for (int64_t k = 0; state && k < D * W; k++)
            dl_1 += (double)state[k] * T[k];
        if (d.log_decay.data)
            contribute_log_decay(d.log_decay, dl_1, dl, s, head);
        write_state(d.state, head, T, D, W, false);
    }
    attention_workspace_free(memory);
}

static const AttentionLabels causal_labels =
    ATTENTION_LABELS("op_causal_linear_attention", "query", "key");

static void causal_linear_attention_backward(Node *node)
{
    const Tensor *out = node->outputs[0], *den = node->saved[0];
    Tensor *state = node->inputs[5];
    const LinearScan scan =
        linear_scan_of(node->inputs, *(const CausalLinearAttentionOptions *)node->attributes);
    const Real *dout = upstream_or_zeros(node);
    const Real *dfinal_state = node->outputs[1] ? tape_upstream(node, 1) : NULL;
    LinearScanGradient d = { .x = op_attention_contributions(node, PACKED_QUERY) };
    d.log_decay = tape_contribution(node, node->inputs[6]);
    const Gradient dstate = tape_contribution(node, state);
    d.state = dstate.accumulate ? scratch_of_node(node, state)->data : dstate.data;
    kernels_of(out)->causal_linear_attention_backward(d, dout, dfinal_state, out->data,
                                                      den ? den->data : NULL, &scan);
    if (dstate.accumulate) /* now, since it may be the query's or value's gradient too */
        kernels_of(state)->column_sums(dstate, d.state, 1, tensor_count(state));
}

Tensor *op_causal_linear_attention(Tape *tape, Tensor *query, Tensor *key, Tensor *value,
                                   CausalLinearAttentionOptions options, Tensor **final_state)
{
    op_attention_check(tape, causal_labels, query, key, value, options.key_lengths, true,
                       PACKED_QUERY);
    causal_attention_check_options(tape, causal_labels, options);
    if (options.offsets)
        op_check_offsets(tape, causal_labels.offsets, options.offsets, options.key_lengths, query,
                         "query");
    op_attention_cast_alike(tape, &query, &key, &value);
    Tensor *inputs[7] = { query, key, value, options.key_lengths, options.offsets, options.state };
    inputs[6] = causal_attention_log_decay(tape, causal_labels, query, value, options.log_decay);
    const LinearScan scan = linear_scan_of(inputs, options);
    const int64_t B = query->shape.size[0], W = linear_scan_columns(&scan);
    const Shape states = shape(scan.x.B, scan.x.H, scan.x.D, W);
    if (options.state)
        op_check_state(tape, causal_labels.state, options.state, states,
                       options.unnormalized ? "H, D, M" : "H, D, M + 1");
    Tensor *out = tape_tensor_of(tape, query->type, shape(B, scan.x.N, scan.x.H, scan.x.M));
    Tensor *den = options.unnormalized ? NULL : tape_tensor(tape, shape(B, scan.x.N, scan.x.H));
    Tensor *after = final_state ? tape_tensor(tape, states) : NULL;
    kernels_of(out)->causal_linear_attention_forward(out->data, den ? den->data : NULL,
                                                     after ? after->data : NULL, &scan);
    tape_record(tape, (Node){ .name = causal_labels.name,
                              .backward = causal_linear_attention_backward,
                              .inputs = { query, key, value, options.key_lengths, options.offsets,
                                          options.state, inputs[6] },
                              .minus_infinity = 1 << 6,
                              .outputs = { out, after },
                              .saved = { den },
                              .attributes = tape_save(tape, &options, sizeof options) });
    if (final_state)
        *final_state = after;
    return out;
}
