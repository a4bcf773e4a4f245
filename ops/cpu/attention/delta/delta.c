/* The delta rule on the CPU, chunk by chunk. A head of a sequence is an item of work; its state
 * stays in the cache of its thread.
 *
 * The WY form: let K, V, U, Q hold C positions as rows, S the state before them, and L_i = l_1 +
 * .. + l_i within them. The recurrence of S makes that of u a triangular system, which forward
 * substitution solves; then out is linear attention's scan with u as values:
 *     (I + diag(beta) A) U = diag(beta) (V - diag(e^L) K S)    A_ij = e^(L_i - L_j) k_i.k_j, j < i
 *     out = diag(e^L) Q S + P U                                P_ij = e^(L_i - L_j) q_i.k_j, j <= i
 *     S <- e^(L_C) S + (diag(e^(L_C - L)) K)^T U
 * and likewise backward, with R the derivative by the state after them:
 *     dU + A^T diag(beta) dU = diag(e^(L_C - L)) K R + P^T G
 *     R <- e^(L_C) R + (diag(e^L) Q)^T G - (diag(e^L) K)^T dV
 *
 * Decays are products of the e^(l_i), never a quotient: past_i = e^(L_i), future_i = e^(L_C - L_i)
 * and E_ij = e^(L_i - L_j), all <= 1, so that strong decays become 0 and nothing overflows. */
#include "ops/attention/linear_rows.h"
#include "ops/cpu/attention/delta/triangles.h"
#include "ops/kernels.h"

/* A pass over all sequences and heads. */
typedef struct DeltaPass {
    int type; /* of query, key, value, out and their gradients; all others are Real */
    const DeltaRule *rule;
    const AttentionInputs *x;
    bool backward;
    int64_t D, M;   /* padded */
    int64_t length; /* positions of the longest sequence, in whole chunks */
    int64_t buffer; /* elements of a thread's buffers */
    Real *buffers;  /* of all threads */
} DeltaPass;

/* A thread's buffers. C: DELTA_CHUNK rows. */
typedef struct DeltaBuffers {
    Real *Q, *K, *V, *U, *G;            /* [C, D] or [C, M] */
    Real *row_D, *row_Z, *row_M;        /* [C, D], [C, D], [C, M] */
    Real *transposed;                   /* [D or M, C] */
    Real *A, *P, *E;                    /* [C, C] */
    Real *beta, *decay, *past, *future; /* [C] */
    Real *S, *R;                        /* [D, M] */
    Real *S_t;                          /* [M, D] */
    Real *du, *Ru, *dl; /* [length, M], [length, D], [length]: of the whole sequence */
} DeltaBuffers;

/* The buffers in a thread's memory, or NULL; used: their size. */
static DeltaBuffers allocate_delta(const DeltaPass *p, Real *memory, int64_t *used)
{
    enum { C = DELTA_CHUNK };
    DeltaBuffers m = { 0 };
    *used = 0;
    m.Q = allocate(memory, used, C * p->D);
    m.K = allocate(memory, used, C * p->D);
    m.V = allocate(memory, used, C * p->M);
    m.U = allocate(memory, used, C * p->M);
    m.G = allocate(memory, used, C * p->M);
    m.row_D = allocate(memory, used, C * p->D);
    m.row_Z = allocate(memory, used, C * p->D);
    m.row_M = allocate(memory, used, C * p->M);
    m.transposed = allocate(memory, used, C * maximum(p->D, p->M));
    m.A = allocate(memory, used, C * C);
    m.P = allocate(memory, used, C * C);
    m.E = allocate(memory, used, C * C);
    m.beta = allocate(memory, used, 4 * C);
    m.decay = m.beta + C;
    m.past = m.decay + C;
    m.future = m.past + C;
    m.S = allocate(memory, used, p->D * p->M);
    if (p->backward) {
        m.R = m.S;
        m.S_t = allocate(memory, used, p->D * p->M);
        m.du = allocate(memory, used, p->length * p->M);
        m.Ru = allocate(memory, used, p->length * p->D);
        m.dl = allocate(memory, used, p->length);
    }
    return m;
}

static DeltaPass delta_pass(TensorType type, const DeltaRule *rule, bool backward)
{
    const AttentionInputs *x = &rule->x;
    DeltaPass p = { .type = (int)type, .rule = rule, .x = x, .backward = backward };
    for (int64_t b = 0; b < x->B; b++)
        p.length = maximum(p.length, first_position(x, b + 1) - first_position(x, b));
    p.length = round_up(p.length, DELTA_CHUNK);
    p.D = round_up(x->D, UNIT);
    p.M = round_up(x->M, UNIT);
    allocate_delta(&p, NULL, &p.buffer);
    p.buffers = device_workspace(device_threads() * p.buffer);
    return p;
}

/* A head of a sequence. */
typedef struct DeltaItem {
    const DeltaPass *pass;
    DeltaBuffers m;                 /* the thread's */
    int64_t b, h, begin, end, keys; /* its positions of all; those from keys on are masked */
} DeltaItem;

static DeltaItem delta_item(const DeltaPass *p, int64_t index)
{
    const AttentionInputs *x = p->x;
    int64_t used;
    DeltaItem item = { .pass = p, .b = index / x->H, .h = index % x->H };
    item.m = allocate_delta(p, p->buffers + omp_get_thread_num() * p->buffer, &used);
    item.begin = first_position(x, item.b);
    item.end = first_position(x, item.b + 1);
    item.keys = x->key_lengths ? item.begin + x->key_lengths[item.b] : item.end;
    return item;
}

static int threads_of_delta(const DeltaPass *p)
{
    const int64_t rows = first_position(p->x, p->x->B) * p->x->H;
    return threads_for(rows, (p->backward ? 0.3 : 0.1) * (double)(p->D * p->M));
}

/* DELTA_ITEMS(item, p) statement: for all items, divided among the threads. */
#define DELTA_ITEMS(item, p)                                                                       \
    PRAGMA(omp parallel for schedule(dynamic) num_threads(threads_of_delta(p)))                    \
    for (int64_t index = 0; index < (p)->x->B * (p)->x->H; index++)                                \
        for (DeltaItem item = delta_item(p, index); item.pass; item.pass = NULL)

/* --------------------------------------------------------------------------------------- chunks */

/* Some positions of an item. */
typedef struct DeltaChunk {
    const DeltaItem *item;
    int64_t first, count; /* positions of all; */
    int64_t keys;         /* those that are not masked */
    int64_t rows;         /* count, padded to whole vectors and tiles */
    bool decays;
    Real all; /* e^(L_C) */
} DeltaChunk;

/* The chunk from a position on; loads beta, past, future and E. */
static DeltaChunk load_chunk(const DeltaItem *item, int64_t first)
{
    const DeltaRule *s = item->pass->rule;
    const DeltaBuffers *m = &item->m;
    const int64_t count = minimum(DELTA_CHUNK, item->end - first);
    DeltaChunk c = { .item = item, .first = first, .count = count, .decays = s->log_decay };
    c.keys = maximum(minimum(item->keys - first, count), 0);
    c.rows = round_up(count, UNIT);
    c.all = 1;
    for (int64_t i = 0; i < c.rows; i++) {
        const int64_t row = (first + i) * s->x.H + item->h;
        m->beta[i] = i < c.keys ? s->beta[row] : 0;
        m->decay[i] = i < c.keys && c.decays ? real_exp(s->log_decay[row]) : 1;
        m->past[i] = c.all *= m->decay[i];
    }
    if (!c.decays)
        return c;
    for (int64_t i = c.rows - 1; i >= 0; i--)
        m->future[i] = i + 1 < c.rows ? m->future[i + 1] * m->decay[i + 1] : 1;
    memset(m->E, 0, (size_t)(c.rows * DELTA_CHUNK) * sizeof *m->E);
    for (int64_t i = 0; i < c.rows; i++) {
        for (int64_t j = 0; i > 0 && j < DELTA_CHUNK; j++)
            m->E[i * DELTA_CHUNK + j] = m->decay[i] * m->E[(i - 1) * DELTA_CHUNK + j];
        m->E[i * DELTA_CHUNK + i] = 1;
    }
    return c;
}

/* The chunk's rows of a tensor with `columns` elements per head, `stride` per position */
static Rows delta_rows(const DeltaChunk *c, int type, const Real *data, int64_t stride,
                       int64_t columns)
{
    const int64_t at = c->first * stride + c->item->h * columns;
    return (Rows){ type, elements_at(type, data, at), stride, c->count, columns };
}

static void load_rows(const DeltaChunk *c, Real *to, Rows rows, int64_t padded)
{
    pack(to, &rows, padded, 1, AHEAD);
    memset(to + rows.count * padded, 0, (size_t)((c->rows - rows.count) * padded) * sizeof *to);
}

static void load_query(const DeltaChunk *c)
{
    const AttentionInputs *x = c->item->pass->x;
    load_rows(c, c->item->m.Q, delta_rows(c, c->item->pass->type, x->query, x->query_stride, x->D),
              c->item->pass->D);
}

/* Masked keys and values may hold NaN. */
static void load_key(const DeltaChunk *c)
{
    const AttentionInputs *x = c->item->pass->x;
    Rows rows = delta_rows(c, c->item->pass->type, x->key, x->key_stride, x->D);
    rows.count = c->keys;
    load_rows(c, c->item->m.K, rows, c->item->pass->D);
}

static void load_value(const DeltaChunk *c)
{
    const AttentionInputs *x = c->item->pass->x;
    Rows rows = delta_rows(c, c->item->pass->type, x->value, x->value_stride, x->M);
    rows.count = c->keys;
    load_rows(c, c->item->m.V, rows, c->item->pass->M);
}

/* Rows of out or of its gradient, or with TENSOR_REAL of u. */
static void load_out_like(const DeltaChunk *c, Real *to, int type, const Real *data)
{
    const AttentionInputs *x = c->item->pass->x;
    load_rows(c, to, delta_rows(c, type, data, x->H * x->M, x->M), c->item->pass->M);
}

static void store_delta_rows(const DeltaChunk *c, Gradient to, int type, const Real *rows,
                             int64_t stride, int64_t columns)
{
    if (!to.data)
        return;
    const Rows at = delta_rows(c, type, to.data, stride, columns);
    const GradientRows rows_of = {
        type, { (Real *)at.data, to.accumulate }, stride, c->count, columns
    };
    unpack(&rows_of, rows, round_up(columns, UNIT), 1, AHEAD);
}

/* x <- E o x, the lower triangle; times factor_i if it is not NULL */
static void apply_decays(const DeltaChunk *c, Real *restrict x, const Real *restrict factor)
{
    const Real *restrict E = c->item->m.E;
    for (int64_t i = 0; i < c->rows; i++)
        for (int64_t j = 0, k = i * DELTA_CHUNK; j <= i; j++, k++)
            x[k] = (c->decays ? E[k] : 1) * (factor ? factor[i] : 1) * x[k];
}

/* Row i of x times factor_i, which is past or future: 1 without a decay. */
static void decay_rows(const DeltaChunk *c, Real *to, const Real *x, const Real *factor,
                       int64_t columns)
{
    if (c->decays)
        scale_rows(to, x, factor, c->rows, columns);
    else if (to != x)
        memcpy(to, x, (size_t)(c->rows * columns) * sizeof *to);
}

static void decay_state_of(const DeltaChunk *c, Real *S)
{
    const DeltaPass *p = c->item->pass;
    for (int64_t i = 0; c->all != 1 && i < p->D * p->M; i++)
        S[i] *= c->all;
}

/* A_ij = -beta_i E_ij k_i.k_j and P_ij = E_ij q_i.k_j */
static void key_products(const DeltaChunk *c)
{
    const DeltaBuffers *m = &c->item->m;
    const int64_t D = c->item->pass->D;
    Real factor[DELTA_CHUNK];
    for (int64_t i = 0; i < c->rows; i++)
        factor[i] = -m->beta[i];
    transpose_rows(m->transposed, DELTA_CHUNK, m->K, c->rows, D);
    lower_triangle(m->A, m->K, m->transposed, c->rows, D);
    lower_triangle(m->P, m->Q, m->transposed, c->rows, D);
    apply_decays(c, m->A, factor);
    apply_decays(c, m->P, NULL);
}

/* P_ij = E_ij g_i.u_j and A_ij = E_ij w_i.u_j, j < i; w [C, M] */
static void value_products(const DeltaChunk *c, const Real *w)
{
    const DeltaBuffers *m = &c->item->m;
    const int64_t M = c->item->pass->M;
    transpose_rows(m->transposed, DELTA_CHUNK, m->U, c->rows, M);
    lower_triangle(m->P, m->G, m->transposed, c->rows, M);
    lower_triangle(m->A, w, m->transposed, c->rows, M);
    apply_decays(c, m->P, NULL);
    apply_decays(c, m->A, NULL);
    for (int64_t i = 0; i < c->rows; i++)
        m->A[i * DELTA_CHUNK + i] = 0;
}

/* to [D, M], padded, or its transpose [M, D] = a state [D, M]; NULL: 0 */
static void load_delta_state(const DeltaItem *item, Real *to, const Real *state, bool transposed)
{
    const DeltaPass *p = item->pass;
    const int64_t D = p->x->D, M = p->x->M;
    memset(to, 0, (size_t)(p->D * p->M) * sizeof *to);
    for (int64_t i = 0; state && i < D * M; i++) {
        const int64_t d = i / M, v = i % M;
        to[transposed ? v * p->D + d : d * p->M + v] =
            state[(item->b * p->x->H + item->h) * D * M + i];
    }
}

static void store_delta_state(const DeltaItem *item, Real *to, const Real *S)
{
    const DeltaPass *p = item->pass;
    const int64_t D = p->x->D, M = p->x->M, at = (item->b * p->x->H + item->h) * D * M;
    for (int64_t i = 0; to && i < D * M; i++)
        to[at + i] = S[i / M * p->M + i % M];
}

/* -------------------------------------------------------------------------------------- forward */

/* U = diag(beta) (V - diag(past) K S), (I - A) U = U      out = diag(past) Q S + P U
 * S <- e^(L_C) S + K^T diag(future) U */
static void forward_chunk(const DeltaChunk *c, Real *out, Real *u)
{
    const DeltaPass *p = c->item->pass;
    const DeltaBuffers *m = &c->item->m;
    const int64_t D = p->D, M = p->M, rows = c->rows, H = p->x->H;
    load_query(c);
    load_key(c);
    load_value(c);
    key_products(c);
    set_product(m->U, m->K, D, m->S, M, rows, D, M);
    decay_rows(c, m->U, m->U, m->past, M);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t v = 0; v < M; v++)
            m->U[i * M + v] = m->beta[i] * (m->V[i * M + v] - m->U[i * M + v]);
    substitute_forward(m->U, m->A, rows, M);
    set_product(m->row_M, m->Q, D, m->S, M, rows, D, M);
    decay_rows(c, m->row_M, m->row_M, m->past, M);
    add_lower_product(m->row_M, m->P, m->U, rows, c->count, M);
    store_delta_rows(c, (Gradient){ out, false }, p->type, m->row_M, H * p->x->M, p->x->M);
    store_delta_rows(c, (Gradient){ u, false }, TENSOR_REAL, m->U, H * p->x->M, p->x->M);
    decay_state_of(c, m->S);
    decay_rows(c, m->row_M, m->U, m->future, M);
    add_product_transposed(m->S, m->K, D, m->row_M, D, c->count, M);
}

static void delta_forward(TensorType type, Real *out, Real *u, Real *final_state,
                          const DeltaRule *s)
{
    const DeltaPass p = delta_pass(type, s, false);
    DELTA_ITEMS(item, &p)
    {
        load_delta_state(&item, item.m.S, s->state, false);
        for (int64_t i = item.begin; i < item.end; i += DELTA_CHUNK) {
            const DeltaChunk c = load_chunk(&item, i);
            forward_chunk(&c, out, u);
        }
        store_delta_state(&item, final_state, item.m.S);
    }
    device_workspace_free(p.buffers);
}

void delta_rule_forward_cpu(Real *out, Real *u, Real *final_state, const DeltaRule *s)
{
    delta_forward(TENSOR_REAL, out, u, final_state, s);
}

void delta_rule_forward_bf16(Real *out, Real *u, Real *final_state, const DeltaRule *s)
{
    delta_forward(TENSOR_BF16, out, u, final_state, s);
}

/* ------------------------------------------------------------------------------------- backward */

typedef struct DeltaUpstream {
    DeltaRuleGradient d;
    const Real *dout, *dfinal_state, *u;
} DeltaUpstream;

/* dU = diag(future) K R + P^T G, (I - A^T) dU = dU
 * Ru = diag(future) U R^T + P'^T Q + A'^T K      P' = E o G U^T      A' = E o -dV U^T
 * R <- e^(L_C) R + (diag(past) Q)^T G - (diag(past) K)^T dV */
static void backward_chunk_reverse(const DeltaChunk *c, const DeltaUpstream *g)
{
    const DeltaPass *p = c->item->pass;
    const DeltaBuffers *m = &c->item->m;
    const int64_t D = p->D, M = p->M, rows = c->rows, at = c->first - c->item->begin;
    Real *du = m->du + at * M, *Ru = m->Ru + at * D, *minus_dv = m->row_M;
    load_query(c);
    load_key(c);
    load_out_like(c, m->G, p->type, g->dout);
    load_out_like(c, m->U, TENSOR_REAL, g->u);
    key_products(c);
    set_product(du, m->K, D, m->R, M, rows, D, M);
    decay_rows(c, du, du, m->future, M);
    add_upper_product(du, m->P, m->G, rows, c->count, M);
    substitute_backward(du, m->A, rows, M);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t v = 0; v < M; v++)
            minus_dv[i * M + v] = -m->beta[i] * du[i * M + v];
    value_products(c, minus_dv);
    transpose_rows(m->S_t, p->D, m->R, p->D, p->M);
    set_product(Ru, m->U, M, m->S_t, D, rows, M, D);
    decay_rows(c, Ru, Ru, m->future, D);
    add_upper_product(Ru, m->P, m->Q, rows, c->count, D);
    add_upper_product(Ru, m->A, m->K, rows, c->count, D);
    decay_state_of(c, m->R);
    decay_rows(c, m->G, m->G, m->past, M);
    decay_rows(c, minus_dv, minus_dv, m->past, M);
    add_product_transposed(m->R, m->Q, D, m->G, D, c->count, M);
    add_product_transposed(m->R, m->K, D, minus_dv, D, c->count, M);
}

/* dk = Ru - beta z, dv = beta du, dbeta = du.v - k.z and the terms of dl; z becomes dk, du dv */
static void combine_rows(const DeltaChunk *c, const DeltaUpstream *g, const Real *dq, Real *z)
{
    const DeltaPass *p = c->item->pass;
    const DeltaBuffers *m = &c->item->m;
    const int64_t D = p->D, M = p->M, at = c->first - c->item->begin;
    for (int64_t i = 0; i < c->count; i++) {
        Real *du = m->du + (at + i) * M, *z_i = z + i * D;
        const Real *Ru = m->Ru + (at + i) * D, beta = m->beta[i];
        const Real vdu = dot(m->V + i * M, du, M);
        const Real dbeta = i < c->keys ? vdu - dot(m->K + i * D, z_i, D) : 0;
        m->dl[at + i] = dot(m->Q + i * D, dq + i * D, D) - (i < c->keys ? beta * vdu : 0);
        for (int64_t d = 0; d < D; d++)
            z_i[d] = i < c->keys ? Ru[d] - beta * z_i[d] : 0;
        for (int64_t v = 0; v < M; v++)
            du[v] = i < c->keys ? beta * du[v] : 0;
        if (g->d.beta.data)
            gradient_add(g->d.beta, (c->first + i) * p->x->H + c->item->h, dbeta);
    }
}

/* dQ = diag(past) G S^T + P' K      Z = diag(past) dU S^T + A' K      P' = E o G U^T
 * S <- e^(L_C) S + K^T diag(future) U                                  A' = E o dU U^T, j < i */
static void backward_chunk(const DeltaChunk *c, const DeltaUpstream *g)
{
    const DeltaPass *p = c->item->pass;
    const AttentionInputs *x = p->x;
    const DeltaBuffers *m = &c->item->m;
    const int64_t D = p->D, M = p->M, rows = c->rows;
    Real *du = m->du + (c->first - c->item->begin) * M, *dq = m->row_D, *z = m->row_Z;
    load_query(c);
    load_key(c);
    load_value(c);
    load_out_like(c, m->G, p->type, g->dout);
    load_out_like(c, m->U, TENSOR_REAL, g->u);
    value_products(c, du);
    set_product(dq, m->G, M, m->S_t, D, rows, M, D);
    decay_rows(c, dq, dq, m->past, D);
    add_lower_product(dq, m->P, m->K, rows, c->count, D);
    set_product(z, du, M, m->S_t, D, rows, M, D);
    decay_rows(c, z, z, m->past, D);
    add_lower_product(z, m->A, m->K, rows, c->count, D);
    decay_state_of(c, m->S_t);
    decay_rows(c, m->row_M, m->U, m->future, M);
    add_product_transposed(m->S_t, m->row_M, M, m->K, M, c->count, D);
    combine_rows(c, g, dq, z);
    store_delta_rows(c, g->d.x.query, p->type, dq, x->query_stride, x->D);
    store_delta_rows(c, g->d.x.key, p->type, z, x->key_stride, x->D);
    store_delta_rows(c, g->d.x.value, p->type, du, x->value_stride, x->M);
}

/* dl_i <- <S_N, dL/dS_N> + sum_{t>=i} (q_t.dq_t - v_t.dv_t) */
static void backward_decays(const DeltaItem *item, const DeltaUpstream *g)
{
    const DeltaPass *p = item->pass;
    const int64_t D = p->x->D, M = p->x->M, H = p->x->H, at = (item->b * H + item->h) * D * M;
    double dl = 0;
    if (!g->d.log_decay.data)
        return;
    for (int64_t i = 0; g->dfinal_state && i < D * M; i++)
        dl += (double)item->m.S_t[i % M * p->D + i / M] * (double)g->dfinal_state[at + i];
    for (int64_t i = item->end - 1; i >= item->begin; i--) {
        dl += (double)item->m.dl[i - item->begin];
        gradient_add(g->d.log_decay, i * H + item->h, i < item->keys ? (Real)dl : 0);
    }
}

static void delta_backward(TensorType type, DeltaUpstream g, const DeltaRule *s)
{
    const DeltaPass p = delta_pass(type, s, true);
    DELTA_ITEMS(item, &p)
    {
        load_delta_state(&item, item.m.R, g.dfinal_state, false);
        const int64_t chunks = (item.end - item.begin + DELTA_CHUNK - 1) / DELTA_CHUNK;
        for (int64_t i = chunks - 1; i >= 0; i--) {
            const DeltaChunk c = load_chunk(&item, item.begin + i * DELTA_CHUNK);
            backward_chunk_reverse(&c, &g);
        }
        store_delta_state(&item, g.d.state, item.m.R);
        load_delta_state(&item, item.m.S_t, s->state, true);
        for (int64_t i = 0; i < chunks; i++) {
            const DeltaChunk c = load_chunk(&item, item.begin + i * DELTA_CHUNK);
            backward_chunk(&c, &g);
        }
        backward_decays(&item, &g);
    }
    device_workspace_free(p.buffers);
}

void delta_rule_backward_cpu(DeltaRuleGradient d, const Real *dout, const Real *dfinal_state,
                             const Real *u, const DeltaRule *s)
{
    delta_backward(TENSOR_REAL, (DeltaUpstream){ d, dout, dfinal_state, u }, s);
}

void delta_rule_backward_bf16(DeltaRuleGradient d, const Real *dout, const Real *dfinal_state,
                              const Real *u, const DeltaRule *s)
{
    delta_backward(TENSOR_BF16, (DeltaUpstream){ d, dout, dfinal_state, u }, s);
}
