/* Softmax attention (Vaswani et al. 2017, equation 1) in tiles (Dao et al. 2022, FlashAttention),
 * for one sequence and one head: queries q_i and keys k_j have D elements, values v_j have M. Sums
 * over j run over the keys that query i attends to: j < key_length, and j <= i under the causal
 * mask, or those that a window, sinks, a prefix and documents leave (visible.h). The additive mask,
 * if there is one, is a constant.
 *
 *   s_ij = q_i.k_j / sqrt D + mask_ij      P_ij = e^s_ij / sum_j e^s_ij      out_i = sum_j P_ij v_j
 *
 * Under the causal mask there may be a decay (Lin et al. 2025, Forgetting Transformer): s_ij gains
 *   log_decay_{j+1} + ... + log_decay_i = c_i - c_j,      c_i = log_decay_1 + ... + log_decay_i
 * Softmax does not change if all s_ij of a row gain one number, so masked positions, from
 * key_length on, add nothing to c_i.
 *
 * Forward: online softmax. A row of s is computed one tile of keys at a time. For the keys so far
 * the row holds the maximum m, the sum l = sum_j e^(s_ij - m), and o = sum_j e^(s_ij - m) v_j. No
 * exponential exceeds 1, so nothing overflows. A tile with a larger maximum m' first rescales them,
 *   l <- e^(m - m') l        o <- e^(m - m') o        m <- m'
 * because e^(s - m') = e^(m - m') e^(s - m), and then adds its own terms. After the last tile
 *   out_i = o / l
 * mask_ij = -infinity gives P_ij = 0. Where it excludes all keys of a query, l = 0: then 1 / l
 * counts as 0, so out_i = 0, and P_ij = 0 in the backward pass too.
 *
 * Backward. g_i is the upstream gradient of out_i. Saved for the backward pass are out, m_i and
 * 1 / l_i, from which a tile of P is recomputed: P_ij = e^(s_ij - m_i) / l_i. Their one number,
 * m_i + ln l_i, loses ln l_i by rounding where a mask adds -10^9 to all scores of a row.
 *   out_i is linear in v_j with the factor P_ij:
 *     dv_j <- sum_i P_ij g_i                   dP_ij = g_i.v_j
 *   Softmax: dP_ij/ds_ik = P_ij ([j = k] - P_ik), because ln P_ij = s_ij - lse_i and
 *   dlse_i/ds_ik = e^s_ik / sum_j e^s_ij = P_ik, where lse_i = ln sum_j e^s_ij. So
 *     dS_ik = sum_j dP_ij P_ij ([j = k] - P_ik) = P_ik (dP_ik - D_i),   D_i = sum_j P_ij dP_ij
 *   and D_i (not the head size D) needs no row of P:
 *     D_i = sum_j P_ij (g_i.v_j) = g_i.(sum_j P_ij v_j) = g_i.out_i
 *   s_ij is linear in q_i and in k_j:
 *     dq_i <- sum_j dS_ij k_j / sqrt D         dk_j <- sum_i dS_ij q_i / sqrt D
 *   With a decay s_ij also contains c_i and -c_j, and c_i contains log_decay_t for all t <= i:
 *     dc_i = sum_j dS_ij - sum_n dS_ni         dlog_decay_t <- sum_{i>=t} dc_i
 *   Rows of dS add up to 0 but for the rounding of out_i in D_i. With them in dc_i, dlog_decay_t is
 *   a sum over the pairs j < t <= i alone, and the errors of all others cancel.
 *
 * A sink (OpenAI 2025, gpt-oss; sinks without a key in Xiao et al. 2024, StreamingLLM) is one more
 * key with the logit s_h of its head, a parameter, and the value 0. So it enters l alone, and P_i,
 * the row's weights of the other keys, adds up to 1 - p_i:
 *   l_i = e^(s_h - m_i) + sum_j e^(s_ij - m_i)           p_i = e^(s_h - m_i) / l_i
 * Forward, the row begins with m = s_h and l = 1. Backward, dP of the sink is 0 = g_i.0, so D_i is
 * the sum above as it is, and all formulas hold. Its own dS = p_i (0 - D_i), of all rows of h:
 *   ds_h <- -sum_i p_i D_i
 *
 * Each product above is one matrix product per tile. Of the N x N matrices P and dS only the
 * current tile is in memory.
 *
 * The plain kernels hold one row of s in memory, so they need no online softmax; the backends'
 * compute tiles. Accuracy of the CPU backend: l, o and dq are sums over blocks of 4096 keys, right
 * to 1e-6 for millions of keys. dk and dv are float32 sums over all queries, and on CUDA all sums
 * are over all positions: errors grow with the length, to 1e-5 at 1e5 and 1e-4 at 1e6. The error
 * of c_i - c_j is relative to it, however large c_i is. Products exclude masked pairs; on CUDA
 * their weight is 0, so a NaN or infinite value of a later position reaches earlier ones of its
 * tile. */
#include "ops/attention/softmax/visible.h"
#include "ops/kernels.h"
#include "ops/shared/indices.h"
#include "ops/shared/axis.h"
#include "ops/shared/internal.h"

/* s_ij of head h of sequence b; decay: c_i - c_j */
static Real softmax_score(const AttentionInputs *a, int64_t b, int64_t h, int64_t i, int64_t j,
                          double decay)
{
    const Real *q = a->query + attention_query_at(a, b, h, i);
    const Real *k = a->key + attention_key_at(a, b, h, j);
    const Real s = (Real)(attention_dot(q, k, a->D) / sqrt((double)a->D) + decay);
    return a->mask ? s + a->mask[attention_mask_at(a, b, h, i) + j] : s;
}

/* c_j - c_k, k < j */
static double decay_between(const AttentionInputs *a, int64_t b, int64_t h, int64_t k, int64_t j)
{
    double sum = 0;
    for (; a->log_decay && j > k; j--)
        sum += a->log_decay[attention_row_at(a, b, h, j)];
    return sum;
}

void softmax_attention_forward_plain(Real *out, Real *maxima, Real *inverse,
                                     const AttentionInputs *a, bool causal)
{
    Real *rows = device_workspace(a->B * a->H * a->keys);
    EACH_ROW(head, a->B * a->H, a->N * a->keys * (a->D + a->M)) {
        const int64_t b = head / a->H, h = head % a->H;
        const Visibility v = visibility_of(a, causal, b);
        Real *s = rows + head * a->keys; /* s_ij, then e^(s_ij - m) */
        for (int64_t i = 0; i < a->N; i++) {
            const int64_t row = attention_row_at(a, b, h, i);
            const VisibleColumns visible = visible_columns(&v, i);
            const RowStart start = row_start(a->sink_logits, h, attention_lowest(a));
            Real m = start.m;
            double decay = 0;
            for (int64_t j = visible_before(&visible, visible.end), next; j >= visible.first;
                 j = next) {
                s[j] = softmax_score(a, b, h, i, j, decay);
                m = s[j] > m ? s[j] : m;
                next = visible_before(&visible, j);
                decay += decay_between(a, b, h, next, j);
            }
            double l = start.l == 0 ? 0 : real_exp(a->sink_logits[h] - m);
            for (int64_t j = visible.first; j < visible.end; j = visible_after(&visible, j))
                l += (s[j] = real_exp(s[j] - m));
            for (int64_t c = 0; c < a->M; c++) {
                double o = 0;
                for (int64_t j = visible.first; j < visible.end; j = visible_after(&visible, j))
                    o += s[j] * a->value[attention_value_at(a, b, h, j) + c];
                out[row * a->M + c] = l == 0 ? 0 : (Real)(o / l);
            }
            maxima[row] = m;
            inverse[row] = l == 0 ? 0 : (Real)(1 / l);
        }
    }
    device_workspace_free(rows);
}

void softmax_attention_backward_plain(AttentionGradient d, Real *dc_out, Real *dsink,
                                      const Real *dout, const Real *out, const Real *m,
                                      const Real *inverse, const AttentionInputs *a, bool causal)
{
    const int64_t N = a->N, keys = a->keys, D = a->D, M = a->M;
    const int64_t size = (N + keys) * D + keys * M + N;
    double *sums = attention_workspace(a->B * a->H * size);
    EACH_ROW(head, a->B * a->H, 2 * N * keys * (D + M)) {
        const int64_t b = head / a->H, h = head % a->H;
        const Visibility v = visibility_of(a, causal, b);
        double *dq = sums + head * size, *dk = dq + N * D, *dv = dk + keys * D, *dc = dv + keys * M;
        memset(dq, 0, (size_t)size * sizeof *dq);
        for (int64_t i = 0; i < N; i++) {
            const int64_t row = attention_row_at(a, b, h, i);
            const VisibleColumns visible = visible_columns(&v, i);
            const Real *q = a->query + attention_query_at(a, b, h, i), *g = dout + row * M;
            const double D_i = attention_dot(g, out + row * M, M);
            if (dsink)
                dsink[row] = (Real)(-real_exp(a->sink_logits[h] - m[row]) * inverse[row] * D_i);
            double decay = 0;
            for (int64_t j = visible_before(&visible, visible.end), next; j >= visible.first;
                 j = next) {
                const Real *k = a->key + attention_key_at(a, b, h, j);
                const double dP = attention_dot(g, a->value + attention_value_at(a, b, h, j), M);
                const Real s = softmax_score(a, b, h, i, j, decay);
                const Real P = real_exp(s - m[row]) * inverse[row];
                const Real dS = (Real)(P * (dP - D_i) / sqrt((double)D)); /* dS_ij / sqrt D */
                next = visible_before(&visible, j);
                decay += decay_between(a, b, h, next, j);
                for (int64_t c = 0; c < D; c++)
                    dq[i * D + c] += dS * k[c];
                for (int64_t c = 0; c < D; c++)
                    dk[j * D + c] += dS * q[c];
                for (int64_t c = 0; c < M; c++)
                    dv[j * M + c] += P * g[c];
                if (dc_out) {
                    dc[i] += P * (dP - D_i);
                    dc[j] -= P * (dP - D_i);
                }
            }
        }
        attention_contribute(d.query, attention_query_at(a, b, h, 0), a->query_stride, dq, N, D);
        attention_contribute(d.key, attention_key_at(a, b, h, 0), a->key_stride, dk, keys, D);
        attention_contribute(d.value, attention_value_at(a, b, h, 0), a->value_stride, dv, keys, M);
        for (int64_t i = 0; dc_out && i < N; i++)
            dc_out[attention_row_at(a, b, h, i)] = (Real)dc[i];
    }
    attention_workspace_free(sums);
}

/* The mask is an attribute, since it gets no gradient. */
typedef struct SoftmaxAttributes {
    AttentionInputs x;
    bool causal;
} SoftmaxAttributes;

static void softmax_attention_backward(Node *node)
{
    Tensor *out = node->outputs[0], *log_decay = node->inputs[4], *sink_logits = node->inputs[6];
    const SoftmaxAttributes *a = node->attributes;
    const AttentionInputs *x = &a->x;
    const AttentionGradient d = op_attention_contributions(node);
    const bool decays = log_decay && log_decay->requires_grad;
    const bool sinks = sink_logits && sink_logits->requires_grad;
    Tensor *m = node->saved[0], *inverse = node->saved[1];
    Tensor *dc = decays ? scratch_of_node(node, log_decay) : NULL;
    Tensor *dsink = sinks ? scratch_of_node(node, m) : NULL;
    kernels_of(out)->softmax_attention_backward(d, dc ? dc->data : NULL, dsink ? dsink->data : NULL,
                                                tape_upstream(node, 0), out->data, m->data,
                                                inverse->data, x, a->causal);
    if (dc)
        kernels_of(dc)->cumulative_sum(tape_contribution(node, log_decay), dc->data, true,
                                       (AxisView){ 1, x->B, x->N, x->H });
    if (dsink)
        kernels_of(dsink)->column_sums(tape_contribution(node, sink_logits), dsink->data,
                                       x->B * x->N, x->H);
}

static void use_mask(Tape *tape, const char *label, Tensor *mask, AttentionInputs *a)
{
    tape_use_real(tape, label, mask);
    const int64_t *size = mask->shape.size;
    const bool all = mask->shape.rank == 4;
    const int64_t B = all ? size[0] : 1, H = all ? size[1] : 1;
    if (!(all || mask->shape.rank == 2) || (B != 1 && B != a->B) || (H != 1 && H != a->H) ||
        size[2 * all] != a->N || size[2 * all + 1] != a->keys)
        tape_error(tape, "%s is %s, expected %s, or %s where 1 may replace the first two sizes",
                   label, shape_text(mask->shape).text, shape_text(shape(a->N, a->keys)).text,
                   shape_text(shape(a->B, a->H, a->N, a->keys)).text);
    if (mask->requires_grad)
        tape_error(tape, "%s requires a gradient, and the operation computes none for it", label);
    a->mask = mask->data;
    a->mask_sequence_stride = B > 1 ? H * a->N * a->keys : 0;
    a->mask_head_stride = H > 1 ? a->N * a->keys : 0;
}

static void use_log_decay(Tape *tape, const char *label, Tensor *log_decay, bool causal,
                          AttentionInputs *a)
{
    if (!causal)
        tape_error(tape,
                   "%s is given, expected NULL without a causal mask; "
                   "op_causal_softmax_attention has a decay",
                   label);
    op_attention_check_log_decay(tape, label, log_decay, shape(a->B, a->N, a->H));
    a->log_decay = log_decay->data;
}

static void use_sink_logits(Tape *tape, const char *label, Tensor *sink_logits, AttentionInputs *a)
{
    tape_use_real(tape, label, sink_logits);
    if (!shape_equal(sink_logits->shape, shape(a->H)))
        tape_error(tape, "%s is %s, expected %s: one number per head", label,
                   shape_text(sink_logits->shape).text, shape_text(shape(a->H)).text);
    a->sink_logits = sink_logits->data;
}

/* Raises unless the option is 0 or more, and 0 where the operation has no causal mask. */
static int64_t limit_of(Tape *tape, const char *name, const char *option, int64_t value,
                        bool causal)
{
    if (value < 0)
        tape_error(tape, "%s: %s is %lld, expected 0 or more", name, option, (long long)value);
    if (value > 0 && !causal)
        tape_error(
            tape,
            "%s: %s is %lld, expected 0 without the causal mask of op_causal_softmax_attention",
            name, option, (long long)value);
    return value;
}

/* A window of N positions or more, and without a window the sinks, hide nothing: 0. */
static void use_limits(Tape *tape, const char *name, SoftmaxAttentionOptions options, bool causal,
                       AttentionInputs *a)
{
    const int64_t window = limit_of(tape, name, "window", options.window, causal);
    const int64_t sinks = limit_of(tape, name, "sinks", options.sinks, causal);
    const int64_t prefix = limit_of(tape, name, "prefix", options.prefix, causal);
    if (prefix > 0 && options.log_decay)
        tape_error(tape,
                   "%s: prefix is %lld, expected 0 with log_decay, which later positions do not "
                   "have",
                   name, (long long)prefix);
    a->window = window < a->N ? window : 0;
    a->sinks = sinks < a->N ? sinks : a->N;
    a->prefix = prefix < a->N ? prefix : a->N;
}

static void use_documents(Tape *tape, AttentionLabels labels, Tensor *offsets, Tensor *key_lengths,
                          Tensor *query, AttentionInputs *a)
{
    op_check_offsets(tape, labels.offsets, offsets, key_lengths, query, "query");
    if (a->keys != a->N)
        tape_error(tape,
                   "%s are given, expected the same number of queries and keys, not %lld and %lld",
                   labels.offsets, (long long)a->N, (long long)a->keys);
    a->offsets = offsets->integers;
    a->documents = offsets->shape.size[0] - 1;
}

static Tensor *softmax_attention(Tape *tape, AttentionLabels labels, Tensor *query, Tensor *key,
                                 Tensor *value, SoftmaxAttentionOptions options, bool causal)
{
    Tensor *key_lengths = options.key_lengths;
    op_attention_check(tape, labels, query, key, value, key_lengths, causal);
    op_attention_cast_alike(tape, &query, &key, &value);
    SoftmaxAttributes all = { op_attention_of(query, key, value, key_lengths, NULL), causal };
    const AttentionInputs *a = &all.x;
    if (options.mask)
        use_mask(tape, labels.mask, options.mask, &all.x);
    if (options.log_decay)
        use_log_decay(tape, labels.log_decay, options.log_decay, causal, &all.x);
    if (options.sink_logits)
        use_sink_logits(tape, labels.sink_logits, options.sink_logits, &all.x);
    use_limits(tape, labels.name, options, causal, &all.x);
    if (options.offsets)
        use_documents(tape, labels, options.offsets, key_lengths, query, &all.x);
    Tensor *out = tape_tensor_of(tape, query->type, shape(a->B, a->N, a->H, a->M));
    Tensor *m = tape_tensor(tape, shape(a->B, a->N, a->H));
    Tensor *inverse = tape_tensor(tape, m->shape);
    kernels_of(out)->softmax_attention_forward(out->data, m->data, inverse->data, a, causal);
    tape_record(tape, (Node){ .name = labels.name,
                              .backward = softmax_attention_backward,
                              .inputs = { query, key, value, key_lengths, options.log_decay,
                                          options.offsets, options.sink_logits },
                              .minus_infinity = 1 << 4 | 1 << 6,
                              .outputs = { out },
                              .saved = { m, inverse },
                              .attributes = tape_save(tape, &all, sizeof all) });
    return out;
}

Tensor *op_causal_softmax_attention(Tape *tape, Tensor *query, Tensor *key, Tensor *value,
                                    SoftmaxAttentionOptions options)
{
    const AttentionLabels labels = ATTENTION_LABELS("op_causal_softmax_attention", "query", "key");
    return softmax_attention(tape, labels, query, key, value, options, true);
}

Tensor *op_softmax_attention(Tape *tape, Tensor *query, Tensor *key, Tensor *value,
                             SoftmaxAttentionOptions options)
{
    const AttentionLabels labels = ATTENTION_LABELS("op_softmax_attention", "query", "key");
    return softmax_attention(tape, labels, query, key, value, options, false);
}
