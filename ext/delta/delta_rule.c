/* The delta rule (Yang et al. 2024, DeltaNet), with a decay Gated DeltaNet (Yang et al. 2024), with
 * one per key dimension Kimi Delta Attention (Kimi Team 2025)
 *
 * For one sequence and one head: positions run from 1 to N; queries and keys have D elements,
 * values M, and the state S [D, M] maps keys to values. Where linear attention adds k_i v_i^T to S,
 * the delta rule replaces what S returns for k_i. Position i has log decays l_i [D], one per row of
 * S, all <= 0, or one number for all rows. With E_i = diag(e^(l_i)) and an initial state S_0
 *
 * Forward
 *     u_i = beta_i (v_i - (E_i S_{i-1})^T k_i)
 *     S_i = E_i S_{i-1} + k_i u_i^T               out_i = S_i^T q_i
 * For |k_i| = 1 and beta_i = 1, S_i^T k_i = v_i; beta_i = 0 leaves the state to its decay.
 *
 * Backward, from g_i = dL/dout_i and the upstream gradient F of the output S_N; every d below is a
 * derivative of L
 *   S_i is in out_i and, by E_{i+1} S_i, in S_{i+1} and u_{i+1}. With R_i = dL/dS_i
 *     R_N = F + q_N g_N^T
 *     R_i = q_i g_i^T + E_{i+1} (R_{i+1} - k_{i+1} dv_{i+1}^T)
 *   u_i is in S_i alone, v_i in u_i alone:
 *     du_i = R_i^T k_i      dv_i <- beta_i du_i      dbeta_i <- du_i.(v_i - (E_i S_{i-1})^T k_i)
 *   q_i is in out_i; k_i in S_i, beside u_i, and in u_i:
 *     dq_i <- S_i g_i       dk_i <- R_i u_i - beta_i z_i      z_i = E_i S_{i-1} du_i
 *   so that  dbeta_i <- du_i.v_i - k_i.z_i  without a division, for beta_i = 0 too. Last
 *     dS_0 <- E_1 (R_1 - k_1 dv_1^T)
 *   As for l_i, let Z_i = E_i S_{i-1} and R'_i = R_i - q_i g_i^T, and let <A, B> be the D products
 *   of the rows of A and B, and x o y those of elements. Since S_i = Z_i + k_i u_i^T
 *     dl_i     = <Z_i, R_i - k_i dv_i^T> = <Z_i, R'_i> + q_i o Z_i g_i - k_i o Z_i dv_i
 *     dl_{i+1} = <S_i, R'_i>             = <Z_i, R'_i> + k_i o R'_i u_i
 *   which leaves a cumulative sum per row, from 0 again where the row's e^(l_i) is 0:
 *     dl_1 <- <S_0, dL/dS_0>
 *     dl_{i+1} <- dl_i - q_i o Z_i g_i + k_i o Z_i dv_i + k_i o R'_i u_i
 *   and if l_i is one number for all rows, its gradient is the sum of the rows'. Every term has a
 *   decay: the rounding of one without, as in v_i.dv_i - q_i.dq_i, may exceed dl.
 *
 * S runs from the first position, R from the last: the backward pass goes once in each direction.
 * It keeps du_i, R_i u_i and k_i o R'_i u_i between them, and no state but the current one. The CPU
 * processes C positions at once if l_i is one number: the WY form, ext/delta/cpu/delta.c.
 *
 * For positions masked by key_lengths, beta_i and l_i count as 0: the state stays as it is, and
 * nothing is contributed to their key, value, beta and log decay. With offsets, each sequence is
 * one as above.
 *
 * Saved for the backward pass: out, already on the tape, and u, M numbers per position. */
#include "ext/delta/delta.h"
#include "ext/delta/rows.h"

static void delta_rule_forward_plain(Real *out, Real *u, Real *final_state, const DeltaRule *s)
{
    const AttentionInputs *x = &s->x;
    const int64_t D = x->D, M = x->M;
    double *memory = attention_workspace(x->B * x->H * D * M);
    EACH_ROW(head, x->B * x->H, 3 * x->N * D * M) {
        const Head at = head_of(x, head);
        double *S = memory + head * D * M;
        read_state(S, state_of_head(s->state, head, D * M), D, M, true);
        for (int64_t i = at.begin; i < at.end; i++) {
            const DeltaPosition p = delta_position(s, i, at.h);
            Real *u_i = u + p.row * M;
            delta_decay_rows(S, &p, D, M);
            if (!p.masked)
                apply_state(u_i, S, p.k, D, M);
            for (int64_t m = 0; m < M; m++)
                u_i[m] = p.masked ? 0 : (Real)(p.beta * ((double)p.v[m] - (double)u_i[m]));
            if (!p.masked)
                add_outer_product(S, p.k, D, u_i, M);
            apply_state(out + p.row * M, S, p.q, D, M);
        }
        write_state(final_state, head, S, D, M, true);
    }
    attention_workspace_free(memory);
}

/* The operands of a backward pass, and per row what the scan with R leaves to the scan with S. */
typedef struct DeltaBackward {
    DeltaRuleGradient d;
    const Real *dout, *u;
    const DeltaRule *s;
    Real *du, *Ru; /* [B, N, H, M], [B, N, H, D] */
    double *kRu;   /* [B, N, H, D]: k o R' u */
} DeltaBackward;

/* du and R u, from the head's last position. R becomes dL/dS_0. */
static void delta_scan_reverse(const DeltaBackward *g, double *R, double *rows, Head at)
{
    const AttentionInputs *x = &g->s->x;
    const int64_t D = x->D, M = x->M;
    for (int64_t i = at.end - 1; i >= at.begin; i--) {
        const DeltaPosition p = delta_position(g->s, i, at.h);
        double *kRu = g->kRu + p.row * D;
        apply_transposed_state(rows, R, g->u + p.row * M, D, M);
        for (int64_t d = 0; d < D; d++)
            kRu[d] = p.masked ? 0 : (double)p.k[d] * rows[d];
        add_outer_product(R, p.q, D, g->dout + p.row * M, M);
        if (p.masked)
            continue;
        apply_state(g->du + p.row * M, R, p.k, D, M);
        apply_transposed_state(rows, R, g->u + p.row * M, D, M);
        for (int64_t d = 0; d < D; d++)
            g->Ru[p.row * D + d] = (Real)rows[d];
        for (int64_t m = 0; m < M; m++)
            for (int64_t d = 0; d < D; d++)
                R[m * D + d] -= p.beta * (double)p.k[d] * (double)g->du[p.row * M + m];
        delta_decay_rows(R, &p, D, M);
    }
}

/* dl_i from the sums, one per row of S, and the sums for dl_{i+1}; z = Z du, Zg = Z g */
static void delta_contribute_decay(const DeltaBackward *g, double *sums, const DeltaPosition *p,
                                   const double *z, const double *Zg)
{
    const int64_t D = g->s->x.D, decays = g->s->decays;
    double dl = 0;
    for (int64_t d = 0; d < D; d++) {
        sums[d] = delta_row_decay(p, d) == 0 ? 0 : sums[d];
        dl = decays == 1 ? dl + sums[d] : sums[d];
        if (g->d.log_decay.data && (decays == D || d == D - 1))
            gradient_add(g->d.log_decay, decays == D ? p->row * D + d : p->row,
                         p->masked ? 0 : (Real)dl);
        const double kz = p->masked ? 0 : (double)p->k[d] * z[d];
        sums[d] += g->kRu[p->row * D + d] + p->beta * kz - (double)p->q[d] * Zg[d];
    }
}

/* dq, dk, dv, dbeta and dl, from dl_1 and the head's first position. rows [3, D]: the sums for
 * dl, and two rows of the state's products. */
static void delta_scan(const DeltaBackward *g, double *S, double *rows, Head at)
{
    const AttentionInputs *x = &g->s->x;
    const int64_t D = x->D, M = x->M, h = at.h;
    for (int64_t i = at.begin; i < at.end; i++) {
        const DeltaPosition p = delta_position(g->s, i, h);
        const Real *Ru = g->Ru + p.row * D, *du = g->du + p.row * M, *g_i = g->dout + p.row * M;
        double *z = rows + D, *dq = rows + 2 * D, kz = 0;
        const int64_t key = i * x->key_stride + h * D, value = i * x->value_stride + h * M;
        delta_decay_rows(S, &p, D, M);
        if (!p.masked) /* du is not set */
            apply_transposed_state(z, S, du, D, M);
        apply_transposed_state(dq, S, g_i, D, M);
        delta_contribute_decay(g, rows, &p, z, dq);
        for (int64_t d = 0; d < D; d++)
            kz += p.masked ? 0 : (double)p.k[d] * z[d];
        if (!p.masked)
            add_outer_product(S, p.k, D, g->u + p.row * M, M);
        apply_transposed_state(dq, S, g_i, D, M);
        for (int64_t c = 0; g->d.x.query.data && c < D; c++)
            gradient_add(g->d.x.query, i * x->query_stride + h * D + c, (Real)dq[c]);
        for (int64_t c = 0; g->d.x.key.data && c < D; c++)
            gradient_add(g->d.x.key, key + c, p.masked ? 0 : Ru[c] - (Real)p.beta * (Real)z[c]);
        for (int64_t m = 0; g->d.x.value.data && m < M; m++)
            gradient_add(g->d.x.value, value + m, p.masked ? 0 : (Real)(p.beta * (double)du[m]));
        if (g->d.beta.data)
            gradient_add(g->d.beta, p.row, p.masked ? 0 : (Real)(attention_dot(p.v, du, M) - kz));
    }
}

static void delta_rule_backward_plain(DeltaRuleGradient d, const Real *dout,
                                      const Real *dfinal_state, const Real *u, const DeltaRule *s)
{
    const AttentionInputs *x = &s->x;
    const int64_t D = x->D, M = x->M, H = x->H, size = 2 * D * M + 3 * D;
    const int64_t rows = first_position(x, x->B) * H;
    double *memory = attention_workspace(x->B * H * size + rows * D);
    Real *du = device_workspace(rows * (M + D));
    const DeltaBackward g = { d, dout, u, s, du, du + rows * M, memory + x->B * H * size };
    EACH_ROW(head, x->B * H, 7 * x->N * D * M) {
        const Head at = head_of(x, head);
        double *R = memory + head * size, *S = R + D * M, *products = S + D * M;
        read_state(R, state_of_head(dfinal_state, head, D * M), D, M, true);
        read_state(S, state_of_head(s->state, head, D * M), D, M, true);
        delta_scan_reverse(&g, R, products, at);
        for (int64_t i = 0; i < D; i++)
            products[i] = 0;
        for (int64_t c = 0; c < D * M; c++)
            products[c % D] += S[c] * R[c];
        write_state(d.state, head, R, D, M, true);
        delta_scan(&g, S, products, at);
    }
    device_workspace_free(du);
    attention_workspace_free(memory);
}

const DeltaKernels delta_plain = { delta_rule_forward_plain, delta_rule_backward_plain };

static const AttentionLabels delta_labels = ATTENTION_LABELS("op_delta_rule", "query", "key");

/* Of a node's inputs query, key, value, key_lengths, offsets, beta, log_decay, state. */
static DeltaRule delta_rule_of(Tensor *const inputs[NODE_INPUTS])
{
    const Tensor *log_decay = inputs[6], *state = inputs[7];
    return (DeltaRule){
        .x = op_attention_of(inputs[0], inputs[1], inputs[2], inputs[3], inputs[4]),
        .beta = inputs[5]->data,
        .log_decay = log_decay ? log_decay->data : NULL,
        .decays = log_decay && log_decay->shape.rank == 4 ? log_decay->shape.size[3] : 1,
        .state = state ? state->data : NULL,
    };
}

static void delta_rule_backward(Node *node)
{
    const Tensor *out = node->outputs[0], *u = node->saved[0];
    Tensor *state = node->inputs[7];
    const DeltaRule rule = delta_rule_of(node->inputs);
    const Real *dout = upstream_or_zeros(node);
    const Real *dfinal_state = node->outputs[1] ? tape_upstream(node, 1) : NULL;
    DeltaRuleGradient d = { .x = op_attention_contributions(node) };
    d.beta = tape_contribution(node, node->inputs[5]);
    d.log_decay = tape_contribution(node, node->inputs[6]);
    const Gradient dstate = tape_contribution(node, state);
    d.state = dstate.accumulate ? scratch_of_node(node, state)->data : dstate.data;
    delta_kernels(out)->backward(d, dout, dfinal_state, u->data, &rule);
    if (dstate.accumulate) /* now, since it may be the query's or value's gradient too */
        kernels_of(state)->column_sums(dstate, d.state, 1, tensor_count(state));
}

/* One per position and head, or of this rank one per key dimension too */
static void delta_check_log_decay(Tape *tape, Tensor *log_decay, Shape per_head, int64_t D)
{
    const int64_t *size = per_head.size;
    const Shape per_key = shape(size[0], size[1], size[2], D);
    tape_use_real(tape, delta_labels.log_decay, log_decay);
    const bool is_per_key = log_decay->shape.rank == per_key.rank;
    if (is_per_key && !shape_equal(log_decay->shape, per_key))
        tape_error(tape, "%s %s, expected %s: one per position, head and key dimension",
                   delta_labels.log_decay, tensor_text(log_decay).text, shape_text(per_key).text);
    op_attention_check_log_decay(tape, delta_labels.log_decay, log_decay,
                                 is_per_key ? per_key : per_head);
}

Tensor *op_delta_rule(Tape *tape, Tensor *query, Tensor *key, Tensor *value, Tensor *beta,
                      DeltaRuleOptions options, Tensor **final_state)
{
    op_attention_check(tape, delta_labels, query, key, value, options.key_lengths, true);
    if (options.offsets)
        op_check_offsets(tape, delta_labels.offsets, options.offsets, options.key_lengths, query,
                         "query");
    op_attention_cast_alike(tape, &query, &key, &value);
    Tensor *const inputs[NODE_INPUTS] = {
        query,        key, value, options.key_lengths, options.offsets, beta, options.log_decay,
        options.state
    };
    const AttentionInputs x = op_attention_of(query, key, value, NULL, options.offsets);
    const int64_t B = query->shape.size[0];
    const Shape states = shape(x.B, x.H, x.D, x.M), gates = shape(B, x.N, x.H);
    op_attention_check_beta(tape, "op_delta_rule: beta", beta, gates);
    if (options.log_decay)
        delta_check_log_decay(tape, options.log_decay, gates, x.D);
    if (options.state)
        op_check_state(tape, delta_labels.state, options.state, states, "H, D, M");
    Tensor *out = tape_tensor_of(tape, query->type, shape(B, x.N, x.H, x.M));
    Tensor *u = tape_tensor(tape, out->shape);
    Tensor *after = final_state ? tape_tensor(tape, states) : NULL;
    const DeltaRule rule = delta_rule_of(inputs);
    delta_kernels(out)->forward(out->data, u->data, after ? after->data : NULL, &rule);
    Node node = { .name = delta_labels.name,
                  .backward = delta_rule_backward,
                  .outputs = { out, after },
                  .saved = { u } };
    memcpy(node.inputs, inputs, sizeof inputs);
    node.minus_infinity = 1 << 6; /* log_decay */
    tape_record(tape, node);
    if (final_state)
        *final_state = after;
    return out;
}
