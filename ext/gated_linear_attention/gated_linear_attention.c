/* Gated linear attention (Yang, Wang, Shen, Panda, Kim 2023): a decay per key dimension
 *
 * For one sequence and one head: positions run from 1 to N; queries and keys have D elements,
 * values M, and the state S [D, M] is a sum of k_j v_j^T in which each row d, that is each element
 * of the keys, has decays of its own: with log decays l_i <= 0, D elements per position, and an
 * initial state S_0
 *
 * Forward
 *     S_i = diag(e^(l_i)) S_{i-1} + k_i v_i^T      out_i = S_i^T q_i
 * so that with c_i = l_1 + .. + l_i, and o the product by elements,
 *     out_i = S_0^T (e^(c_i) o q_i) + sum_{j<=i} (q_i.(e^(c_i - c_j) o k_j)) v_j
 * and every key dimension forgets at a rate of its own.
 *
 * Backward, from g_i = dL/dout_i and the upstream gradient F of the output S_N; every d below is a
 * derivative of L
 *   S_i is in out_i and, by diag(e^(l_{i+1})) S_i, in S_{i+1}. With R_i = dL/dS_i
 *     R_N = F + q_N g_N^T
 *     R_i = q_i g_i^T + diag(e^(l_{i+1})) R_{i+1}
 *   q_i is in out_i, k_i and v_i in S_i, S_0 in S_1:
 *     dq_i <- S_i g_i      dk_i <- R_i v_i      dv_i <- R_i^T k_i      dS_0 <- diag(e^(l_1)) R_1
 *   As for l_i, let Z_i = diag(e^(l_i)) S_{i-1} and R'_i = R_i - q_i g_i^T be the states that do
 *   not contain position i yet. l_i is in Z_i alone, and for each row d, where <,>_d is the product
 *   of the rows d of two matrices,
 *     dl_i     = <Z_i, R_i>_d  = <Z_i, R'_i>_d + q_i o (Z_i g_i)
 *     dl_{i+1} = <S_i, R'_i>_d = <Z_i, R'_i>_d + k_i o (R'_i v_i)
 *   since S_i = Z_i + k_i v_i^T, and R'_i = diag(e^(l_{i+1})) R_{i+1}. The difference of these two
 *   leaves a sum of D numbers per position, from the end:
 *     dl_{N+1} = <S_N, F>_d      dl_i <- dl_{i+1} + q_i o (Z_i g_i) - k_i o (R'_i v_i)
 *   Every term has a decay. With S_i and R_i, that is dq_i and dk_i, in place of Z_i and R'_i both
 *   products would have one term more, the pair of i with itself: it cancels, but its rounding
 *   error stays, and that exceeds dl_i where the past fades fast. Where e^(l_i) is 0, dl_i is 0,
 *   and so it is at the first position of a sequence without S_0; the sum restarts there.
 *
 * S runs from the first position, R from the last: the backward pass goes once in each direction.
 * It keeps Z_i g_i between them, D numbers per position, and no state but the current one.
 *
 * For positions masked by key_lengths, k_i, v_i and l_i count as 0: the state stays as it is, and
 * nothing is contributed to their key, value and log decay. With offsets, each sequence is one as
 * above.
 *
 * Saved for the backward pass: nothing but the arguments. */
#include "ext/gated_linear_attention/gated_linear_attention.h"
#include "ext/gated_linear_attention/kernels.h"

/* Position i of head h, of all sequences: its rows, and the index of its row. */
typedef struct GatedPosition {
    const Real *q, *k, *v, *l; /* k, v and l may hold NaN if it is masked */
    int64_t row;
    bool masked;
} GatedPosition;

static GatedPosition gated_position(const GatedLinear *s, int64_t i, int64_t h)
{
    const AttentionInputs *x = &s->x;
    const int64_t row = i * x->H + h;
    return (GatedPosition){
        .q = x->query + i * x->query_stride + h * x->D,
        .k = x->key + i * x->key_stride + h * x->D,
        .v = x->value + i * x->value_stride + h * x->M,
        .l = s->log_decay + row * x->D,
        .row = row,
        .masked = key_is_masked(x, i),
    };
}

/* T <- diag(e^(l_i)) T, T [D, M]; stored transposed, [M, D] */
static void decay_rows_of_state(double *T, const GatedPosition *p, int64_t D, int64_t M)
{
    for (int64_t d = 0; !p->masked && d < D; d++) {
        const double decay = exp((double)p->l[d]);
        for (int64_t m = 0; m < M; m++)
            T[m * D + d] *= decay;
    }
}

/* (T x)_d, x [M]; T is stored transposed, [M, D] */
static double row_product(const double *T, const Real *x, int64_t d, int64_t D, int64_t M)
{
    double sum = 0;
    for (int64_t m = 0; m < M; m++)
        sum += T[m * D + d] * (double)x[m];
    return sum;
}

static void gated_linear_forward_plain(Real *out, Real *final_state, const GatedLinear *s)
{
    const AttentionInputs *x = &s->x;
    const int64_t D = x->D, M = x->M;
    double *memory = attention_workspace(x->B * x->H * D * M);
    EACH_ROW(head, x->B * x->H, 3 * x->N * D * M) {
        const Head at = head_of(x, head);
        double *S = memory + head * D * M;
        read_state(S, state_of_head(s->state, head, D * M), D, M, true);
        for (int64_t i = at.begin; i < at.end; i++) {
            const GatedPosition p = gated_position(s, i, at.h);
            decay_rows_of_state(S, &p, D, M);
            if (!p.masked)
                add_outer_product(S, p.k, D, p.v, M);
            apply_state(out + p.row * M, S, p.q, D, M);
        }
        write_state(final_state, head, S, D, M, true);
    }
    attention_workspace_free(memory);
}

/* dq_i, and Zg_i = Z_i g_i [B, N, H, D], from the head's first position. S becomes S_N. */
static void gated_scan(const GatedLinearGradient *d, const GatedLinear *s, const Real *dout,
                       double *Zg, double *S, Head at)
{
    const AttentionInputs *x = &s->x;
    const int64_t D = x->D, M = x->M;
    for (int64_t i = at.begin; i < at.end; i++) {
        const GatedPosition p = gated_position(s, i, at.h);
        const Real *g_i = dout + p.row * M;
        decay_rows_of_state(S, &p, D, M);
        for (int64_t c = 0; c < D; c++)
            Zg[p.row * D + c] = row_product(S, g_i, c, D, M);
        if (!p.masked)
            add_outer_product(S, p.k, D, p.v, M);
        for (int64_t c = 0; d->x.query.data && c < D; c++)
            gradient_add(d->x.query, i * x->query_stride + at.h * D + c,
                         (Real)row_product(S, g_i, c, D, M));
    }
}

/* dk, dv and dl, from dl_{N+1} [D] and the head's last position. R becomes dL/dS_0. */
static void gated_scan_reverse(const GatedLinearGradient *d, const GatedLinear *s, const Real *dout,
                               const double *Zg, double *dl, double *R, Head at)
{
    const AttentionInputs *x = &s->x;
    const int64_t D = x->D, M = x->M;
    for (int64_t i = at.end - 1; i >= at.begin; i--) {
        const GatedPosition p = gated_position(s, i, at.h);
        const Real *g_i = dout + p.row * M;
        const bool first = i == at.begin && !s->state;
        const int64_t key = i * x->key_stride + at.h * D, value = i * x->value_stride + at.h * M;
        for (int64_t c = 0; c < D; c++) {
            const double kRv = p.masked ? 0 : (double)p.k[c] * row_product(R, p.v, c, D, M);
            dl[c] += (double)p.q[c] * Zg[p.row * D + c] - kRv;
            dl[c] = first || (!p.masked && exp((double)p.l[c]) == 0) ? 0 : dl[c];
            if (d->log_decay.data)
                gradient_add(d->log_decay, p.row * D + c, p.masked ? 0 : (Real)dl[c]);
        }
        add_outer_product(R, p.q, D, g_i, M);
        for (int64_t c = 0; d->x.key.data && c < D; c++)
            gradient_add(d->x.key, key + c, p.masked ? 0 : (Real)row_product(R, p.v, c, D, M));
        for (int64_t m = 0; d->x.value.data && m < M; m++)
            gradient_add(d->x.value, value + m, p.masked ? 0 : (Real)state_element(R, p.k, D, m));
        decay_rows_of_state(R, &p, D, M);
    }
}

static void gated_linear_backward_plain(GatedLinearGradient d, const Real *dout,
                                        const Real *dfinal_state, const GatedLinear *s)
{
    const AttentionInputs *x = &s->x;
    const int64_t D = x->D, M = x->M, size = 2 * D * M + D;
    const int64_t rows = first_position(x, x->B) * x->H;
    double *memory = attention_workspace(x->B * x->H * size + rows * D);
    double *Zg = memory + x->B * x->H * size;
    EACH_ROW(head, x->B * x->H, 7 * x->N * D * M) {
        const Head at = head_of(x, head);
        double *S = memory + head * size, *R = S + D * M, *dl = R + D * M;
        read_state(S, state_of_head(s->state, head, D * M), D, M, true);
        read_state(R, state_of_head(dfinal_state, head, D * M), D, M, true);
        gated_scan(&d, s, dout, Zg, S, at);
        memset(dl, 0, (size_t)D * sizeof *dl);
        for (int64_t k = 0; k < D * M; k++)
            dl[k % D] += S[k] * R[k];
        gated_scan_reverse(&d, s, dout, Zg, dl, R, at);
        write_state(d.state, head, R, D, M, true);
    }
    attention_workspace_free(memory);
}

const GatedLinearKernels gated_linear_plain = { gated_linear_forward_plain,
                                                gated_linear_backward_plain };

static const AttentionLabels gated_labels =
    ATTENTION_LABELS("op_gated_linear_attention", "query", "key");

/* Of a node's inputs query, key, value, key_lengths, offsets, log_decay, state. */
enum { LOG_DECAY_INPUT = 5, STATE_INPUT };
static GatedLinear gated_linear_of(Tensor *const inputs[NODE_INPUTS])
{
    const Tensor *state = inputs[STATE_INPUT];
    return (GatedLinear){
        .x = op_attention_of(inputs[0], inputs[1], inputs[2], inputs[3], inputs[4]),
        .log_decay = inputs[LOG_DECAY_INPUT]->data,
        .state = state ? state->data : NULL,
    };
}

static void gated_linear_attention_backward(Node *node)
{
    Tensor *state = node->inputs[STATE_INPUT];
    const GatedLinear s = gated_linear_of(node->inputs);
    const Real *dout = upstream_or_zeros(node);
    const Real *dfinal_state = node->outputs[1] ? tape_upstream(node, 1) : NULL;
    GatedLinearGradient d = { .x = op_attention_contributions(node) };
    d.log_decay = tape_contribution(node, node->inputs[LOG_DECAY_INPUT]);
    const Gradient dstate = tape_contribution(node, state);
    d.state = dstate.accumulate ? scratch_of_node(node, state)->data : dstate.data;
    gated_linear_kernels(node->outputs[0])->backward(d, dout, dfinal_state, &s);
    if (dstate.accumulate) /* now, since it may be the query's or value's gradient too */
        kernels_of(state)->column_sums(dstate, d.state, 1, tensor_count(state));
}

static void check_key_decay(Tape *tape, Tensor *log_decay, Shape expected)
{
    const char *label = gated_labels.log_decay;
    tape_use_real(tape, label, log_decay);
    if (!shape_equal(log_decay->shape, expected))
        tape_error(tape, "%s %s, expected %s: one per position, head and element of the keys",
                   label, tensor_text(log_decay).text, shape_text(expected).text);
    const Real *l = log_decay->data;
    const int64_t count = device_is_cuda(log_decay->device) ? 0 : tensor_count(log_decay);
    int64_t positive = 0, i = 0;
    SUM(+, positive)
    for (int64_t k = 0; k < count; k++)
        positive += l[k] > 0;
    for (; positive && !(l[i] > 0);)
        i++;
    if (positive)
        tape_error(tape, "%s[%lld] is %g, expected 0 or less", label, (long long)i, (double)l[i]);
}

Tensor *op_gated_linear_attention(Tape *tape, Tensor *query, Tensor *key, Tensor *value,
                                  Tensor *log_decay, GatedLinearAttentionOptions options,
                                  Tensor **final_state)
{
    op_attention_check(tape, gated_labels, query, key, value, options.key_lengths, true);
    if (options.offsets)
        op_check_offsets(tape, gated_labels.offsets, options.offsets, options.key_lengths, query,
                         "query");
    op_attention_cast_alike(tape, &query, &key, &value);
    Tensor *const inputs[NODE_INPUTS] = {
        query, key, value, options.key_lengths, options.offsets, log_decay, options.state
    };
    const AttentionInputs x = op_attention_of(query, key, value, NULL, options.offsets);
    const int64_t B = query->shape.size[0];
    const Shape states = shape(x.B, x.H, x.D, x.M);
    check_key_decay(tape, log_decay, shape(B, x.N, x.H, x.D));
    if (options.state)
        op_check_state(tape, gated_labels.state, options.state, states, "H, D, M");
    Tensor *out = tape_tensor_of(tape, query->type, shape(B, x.N, x.H, x.M));
    Tensor *after = final_state ? tape_tensor(tape, states) : NULL;
    const GatedLinear s = gated_linear_of(inputs);
    gated_linear_kernels(out)->forward(out->data, after ? after->data : NULL, &s);
    Node node = { .name = gated_labels.name,
                  .backward = gated_linear_attention_backward,
                  .outputs = { out, after } };
    memcpy(node.inputs, inputs, sizeof inputs);
    node.minus_infinity = 1 << LOG_DECAY_INPUT;
    tape_record(tape, node);
    if (final_state)
        *final_state = after;
    return out;
}
