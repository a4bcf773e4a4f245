/* The delta rule (Yang et al. 2024, DeltaNet), with a decay Gated DeltaNet (Yang et al. 2024)
 *
 * For one sequence and one head: positions run from 1 to N; queries and keys have D elements,
 * values M, and the state S [D, M] maps keys to values. Where linear attention adds k_i v_i^T to S,
 * the delta rule replaces what S returns for k_i: with log decays l_i <= 0 and an initial state S_0
 *
 * Forward
 *     u_i = beta_i (v_i - e^(l_i) S_{i-1}^T k_i)
 *     S_i = e^(l_i) S_{i-1} + k_i u_i^T           out_i = S_i^T q_i
 * For |k_i| = 1 and beta_i = 1, S_i^T k_i = v_i; beta_i = 0 leaves the state to its decay.
 *
 * Backward, from g_i = dL/dout_i and the upstream gradient F of the output S_N; every d below is a
 * derivative of L
 *   S_i is in out_i and, by e^(l_{i+1}) S_i, in S_{i+1} and u_{i+1}. With R_i = dL/dS_i
 *     R_N = F + q_N g_N^T
 *     R_i = q_i g_i^T + e^(l_{i+1}) (R_{i+1} - k_{i+1} dv_{i+1}^T)
 *   u_i is in S_i alone, v_i in u_i alone:
 *     du_i = R_i^T k_i      dv_i <- beta_i du_i      dbeta_i <- du_i.(v_i - e^(l_i) S_{i-1}^T k_i)
 *   q_i is in out_i; k_i in S_i, beside u_i, and in u_i:
 *     dq_i <- S_i g_i       dk_i <- R_i u_i - beta_i z_i      z_i = e^(l_i) S_{i-1} du_i
 *   so that  dbeta_i <- du_i.v_i - k_i.z_i  without a division, for beta_i = 0 too. Last
 *     dS_0 <- e^(l_1) (R_1 - k_1 dv_1^T)
 *   As for l_i, let Z_i = e^(l_i) S_{i-1} and R'_i = R_i - q_i g_i^T. Since S_i = Z_i + k_i u_i^T
 *     dl_i     = <Z_i, R_i - k_i dv_i^T> = <Z_i, R'_i> + q_i.Z_i g_i - k_i.Z_i dv_i
 *     dl_{i+1} = <S_i, R'_i>             = <Z_i, R'_i> + k_i.R'_i u_i
 *   which leaves a cumulative sum of one number per position, from 0 again where e^(l_i) is 0:
 *     dl_1 <- <S_0, dL/dS_0>      dl_{i+1} <- dl_i - q_i.Z_i g_i + k_i.Z_i dv_i + k_i.R'_i u_i
 *   Every term has a decay: the rounding of one without, as in v_i.dv_i - q_i.dq_i, may exceed dl.
 *
 * S runs from the first position, R from the last: the backward pass goes once in each direction.
 * It keeps du_i, R_i u_i and k_i.R'_i u_i between them, and no state but the current one. Backends
 * process C positions at once: the WY form, ext/delta/cpu/delta.c.
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
            decay_state(S, D * M, p.decay);
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
    double *kRu;   /* [B, N, H]: k.R' u */
} DeltaBackward;

/* x.T y, x [D], y [M]; T is stored transposed, [M, D]. */
static double product_by_state(const Real *x, const double *T, const Real *y, int64_t D, int64_t M)
{
    double sum = 0;
    for (int64_t m = 0; m < M; m++)
        for (int64_t d = 0; d < D; d++)
            sum += T[m * D + d] * (double)x[d] * (double)y[m];
    return sum;
}

/* du and R u, from the head's last position. R becomes dL/dS_0. */
static void delta_scan_reverse(const DeltaBackward *g, double *R, Head at)
{
    const AttentionInputs *x = &g->s->x;
    const int64_t D = x->D, M = x->M;
    for (int64_t i = at.end - 1; i >= at.begin; i--) {
        const DeltaPosition p = delta_position(g->s, i, at.h);
        g->kRu[p.row] = p.masked ? 0 : product_by_state(p.k, R, g->u + p.row * M, D, M);
        add_outer_product(R, p.q, D, g->dout + p.row * M, M);
        if (p.masked)
            continue;
        apply_state(g->du + p.row * M, R, p.k, D, M);
        apply_transposed_state(g->Ru + p.row * D, R, g->u + p.row * M, D, M);
        for (int64_t m = 0; m < M; m++)
            for (int64_t d = 0; d < D; d++)
                R[m * D + d] -= p.beta * (double)p.k[d] * (double)g->du[p.row * M + m];
        decay_state(R, D * M, p.decay);
    }
}

/* dq, dk, dv, dbeta and dl, from dl_1 and the head's first position. */
static void delta_scan(const DeltaBackward *g, double dl, double *S, Head at)
{
    const AttentionInputs *x = &g->s->x;
    const int64_t D = x->D, M = x->M, h = at.h;
    for (int64_t i = at.begin; i < at.end; i++) {
        const DeltaPosition p = delta_position(g->s, i, h);
        const Real *Ru = g->Ru + p.row * D, *du = g->du + p.row * M, *g_i = g->dout + p.row * M;
        Real *dq = (Real *)(S + D * M), *z = dq + D;
        const int64_t key = i * x->key_stride + h * D, value = i * x->value_stride + h * M;
        decay_state(S, D * M, p.decay);
        dl = p.decay == 0 ? 0 : dl;
        if (g->d.log_decay.data)
            gradient_add(g->d.log_decay, p.row, p.masked ? 0 : (Real)dl);
        const double kz = p.masked ? 0 : product_by_state(p.k, S, du, D, M);
        dl += g->kRu[p.row] + p.beta * kz - product_by_state(p.q, S, g_i, D, M);
        if (!p.masked) {
            apply_transposed_state(z, S, du, D, M);
            add_outer_product(S, p.k, D, g->u + p.row * M, M);
        }
        apply_transposed_state(dq, S, g_i, D, M);
        for (int64_t c = 0; g->d.x.query.data && c < D; c++)
            gradient_add(g->d.x.query, i * x->query_stride + h * D + c, dq[c]);
        for (int64_t c = 0; g->d.x.key.data && c < D; c++)
            gradient_add(g->d.x.key, key + c, p.masked ? 0 : Ru[c] - (Real)p.beta * z[c]);
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
    const int64_t D = x->D, M = x->M, H = x->H, size = 2 * D * M + 2 * D;
    const int64_t rows = first_position(x, x->B) * H;
    double *memory = attention_workspace(x->B * H * size + rows);
    Real *du = device_workspace(rows * (M + D));
    const DeltaBackward g = { d, dout, u, s, du, du + rows * M, memory + x->B * H * size };
    EACH_ROW(head, x->B * H, 7 * x->N * D * M) {
        const Head at = head_of(x, head);
        double *R = memory + head * size, *S = R + D * M, dl = 0;
        read_state(R, state_of_head(dfinal_state, head, D * M), D, M, true);
        read_state(S, state_of_head(s->state, head, D * M), D, M, true);
        delta_scan_reverse(&g, R, at);
        for (int64_t c = 0; c < D * M; c++)
            dl += S[c] * R[c];
        write_state(d.state, head, R, D, M, true);
        delta_scan(&g, dl, S, at);
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
        .x = op_attention_of(inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], PACKED_QUERY),
        .beta = inputs[5]->data,
        .log_decay = log_decay ? log_decay->data : NULL,
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
    DeltaRuleGradient d = { .x = op_attention_contributions(node, PACKED_QUERY) };
    d.beta = tape_contribution(node, node->inputs[5]);
    d.log_decay = tape_contribution(node, node->inputs[6]);
    const Gradient dstate = tape_contribution(node, state);
    d.state = dstate.accumulate ? scratch_of_node(node, state)->data : dstate.data;
    delta_kernels(out)->backward(d, dout, dfinal_state, u->data, &rule);
    if (dstate.accumulate) /* now, since it may be the query's or value's gradient too */
        kernels_of(state)->column_sums(dstate, d.state, 1, tensor_count(state));
}

Tensor *op_delta_rule(Tape *tape, Tensor *query, Tensor *key, Tensor *value, Tensor *beta,
                      DeltaRuleOptions options, Tensor **final_state)
{
    op_attention_check(tape, delta_labels, query, key, value, options.key_lengths, true,
                       PACKED_QUERY);
    if (options.offsets)
        op_check_offsets(tape, delta_labels.offsets, options.offsets, options.key_lengths, query,
                         "query");
    op_attention_cast_alike(tape, &query, &key, &value);
    Tensor *const inputs[NODE_INPUTS] = {
        query,        key, value, options.key_lengths, options.offsets, beta, options.log_decay,
        options.state
    };
    const AttentionInputs x =
        op_attention_of(query, key, value, NULL, options.offsets, PACKED_QUERY);
    const int64_t B = query->shape.size[0];
    const Shape states = shape(x.B, x.H, x.D, x.M), gates = shape(B, x.N, x.H);
    op_attention_check_beta(tape, "op_delta_rule: beta", beta, gates);
    if (options.log_decay)
        op_attention_check_log_decay(tape, delta_labels.log_decay, options.log_decay, gates);
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
