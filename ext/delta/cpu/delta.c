/* The delta rule on the CPU, chunk by chunk; with a decay per key dimension, by position:
 * positions.c. A head of a sequence is an item of work; its state
 * stays in the cache of its thread.
 *
 * The WY form: let K, V, U, Q hold C positions as rows, S the state before them, and c_i = l_1 +
 * .. + l_i within them. The recurrence of S makes that of u a triangular system, which forward
 * substitution solves; then out is linear attention's scan with u as values:
 *     (I + diag(beta) A) U = diag(beta) (V - diag(e^c) K S)    A_ij = e^(c_i - c_j) k_i.k_j, j < i
 *     out = diag(e^c) Q S + P U                                P_ij = e^(c_i - c_j) q_i.k_j, j <= i
 *     S <- e^(c_C) S + (diag(e^(c_C - c)) K)^T U
 * and likewise backward, with R the derivative by the state after them:
 *     dU + A^T diag(beta) dU = diag(e^(c_C - c)) K R + P^T G
 *     R <- e^(c_C) R + (diag(e^c) Q)^T G - (diag(e^c) K)^T dV
 *
 * Decays are products of the e^(l_i), or exponentials of sums, never a quotient: past_i = e^(c_i),
 * future_i = e^(c_C - c_i) and E_ij = e^(c_i - c_j), all <= 1, so that strong decays become 0,
 * before they are subnormal, and nothing overflows. Weak ones are not applied to a state chunk by
 * chunk, which would add up their rounding: S is stored without its factor `pending`, until that is
 * below 1/2.
 *
 * The log decay's gradient dl_i is a sum over pairs of a position t >= i and a position j < i. With
 * S before the chunk and R after it
 *     dl_i     = dl_{C+1} + sum_{t>=i} across_t + within_i      within_i = sum_{t>=i>j} W_tj
 *     across_t = past_t q_t.S g_t - past_t k_t.S dv_t - future_t k_t.R u_t
 *     W_tj     = E_tj ((q_t.k_j) (g_t.u_j) - (k_t.k_j) (dv_t.u_j))
 * Every term has a decay: the rounding of a position's pair with itself would be larger than dl
 * where the past fades. The sum of across is one per segment of positions, so that its error does
 * not grow with the length: R is stored per segment, and <S, R> is dl between two of them. */
#include "ext/delta/cpu/positions.h"
#include "ext/delta/cpu/triangles.h"
#include "ops/cpu/shared/head_rows.h"

/* A pass over all sequences and heads. */
typedef struct DeltaPass {
    int type; /* of query, key, value, out and their gradients; all others are Real */
    const DeltaRule *rule;
    const AttentionInputs *x;
    bool backward;
    int64_t D, M;   /* padded */
    int64_t length; /* positions of the longest sequence, in whole chunks: they start at the first
                     * position and at the first masked one */
    int64_t buffer; /* elements of a thread's buffers */
    Real *buffers;  /* of all threads */
} DeltaPass;

/* A thread's buffers. C: DELTA_CHUNK rows. */
typedef struct DeltaBuffers {
    Real *Q, *K, *V, *U, *G;            /* [C, D] or [C, M] */
    Real *row_D, *row_Z, *row_M;        /* [C, D], [C, D], [C, M] */
    Real *transposed;                   /* [D or M, C] */
    Real *A, *P, *E, *dA, *dP;          /* [C, C] */
    Real *beta, *decay, *past, *future; /* [C]; past and future: times pending or 1 / pending */
    Real *S, *R;                        /* [D, M] */
    Real *S_t;                          /* [M, D] */
    Real *du, *Ru;                      /* [length, M], [length, D]: of the whole sequence */
    Real *across, *within;              /* [length] */
    Real *segment_R;                    /* [segments, M, D]: R after each segment */
} DeltaBuffers;

/* Segments end at multiples of DELTA_SEGMENT, whole chunks. The first chunk is one of its own: the
 * initial state, like the final state's gradient, may be much larger than all that follows. */
enum { DELTA_SEGMENT = 512 };

/* The segment of a position of the sequence, and its first position */
static int64_t delta_segment(int64_t position)
{
    return position < DELTA_CHUNK ? 0 : position / DELTA_SEGMENT + 1;
}
static int64_t segment_begin(int64_t segment)
{
    return segment == 0 ? 0 : maximum((segment - 1) * DELTA_SEGMENT, DELTA_CHUNK);
}

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
    m.beta = allocate(memory, used, C);
    m.decay = allocate(memory, used, C);
    m.past = allocate(memory, used, C);
    m.future = allocate(memory, used, C);
    m.S = allocate(memory, used, p->D * p->M);
    if (p->backward) {
        m.R = m.S;
        m.S_t = allocate(memory, used, p->D * p->M);
        m.du = allocate(memory, used, p->length * p->M);
        m.Ru = allocate(memory, used, p->length * p->D);
        m.dA = allocate(memory, used, C * C);
        m.dP = allocate(memory, used, C * C);
        m.across = allocate(memory, used, p->length);
        m.within = allocate(memory, used, p->length);
        m.segment_R = allocate(memory, used, (delta_segment(p->length) + 1) * p->D * p->M);
    }
    return m;
}

static DeltaPass delta_pass(TensorType type, const DeltaRule *rule, bool backward)
{
    const AttentionInputs *x = &rule->x;
    DeltaPass p = { .type = (int)type, .rule = rule, .x = x, .backward = backward };
    for (int64_t b = 0; b < x->B; b++)
        p.length = maximum(p.length, first_position(x, b + 1) - first_position(x, b));
    p.length = round_up(p.length, DELTA_CHUNK) + (x->key_lengths ? DELTA_CHUNK : 0);
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
    double pending;                 /* S or R is this times the stored one, in [1/2, 1] */
    double dl;                      /* of the segment's first position */
} DeltaItem;

static DeltaItem delta_item(const DeltaPass *p, int64_t index)
{
    const AttentionInputs *x = p->x;
    int64_t used;
    DeltaItem item = { .pass = p, .b = index / x->H, .h = index % x->H };
    item.m = allocate_delta(p, p->buffers + omp_get_thread_num() * p->buffer, &used);
    item.begin = first_position(x, item.b);
    item.end = first_position(x, item.b + 1);
    item.pending = 1;
    item.keys = x->key_lengths ? item.begin + x->key_lengths[item.b] : item.end;
    return item;
}

static int threads_of_delta(const DeltaPass *p)
{
    const int64_t rows = first_position(p->x, p->x->B) * p->x->H;
    return device_threads_for(rows, (p->backward ? 0.3 : 0.1) * (double)(p->D * p->M));
}

/* DELTA_ITEMS(item, p) statement: for all items, divided among the threads. */
#define DELTA_ITEMS(item, p)                                                                       \
    PRAGMA(omp parallel for schedule(dynamic) num_threads(threads_of_delta(p)))                    \
    for (int64_t index = 0; index < (p)->x->B * (p)->x->H; index++)                                \
        for (DeltaItem item = delta_item(p, index); item.pass; item.pass = NULL)

/* --------------------------------------------------------------------------------------- chunks */

/* Some positions of an item. */
typedef struct DeltaChunk {
    DeltaItem *item;
    int64_t first, count; /* positions of all; */
    int64_t keys;         /* those that are not masked */
    int64_t rows;         /* count, padded to whole vectors and tiles */
    bool decays;
    double pending; /* before the chunk */
    Real all;       /* what the stored state is multiplied by: e^(c_C) times pending, or 1 */
} DeltaChunk;

/* e^x as precise as that of a Real x */
static inline Real exp_of_sum(double x)
{
    const Real rounded = (Real)x;
    return real_exp(rounded) * (1 + (Real)(x - (double)rounded));
}

/* decay, past and future. The sums are in double: the float nearest to e^(l_i) is wrong by up to
 * 3e-8, the same for each of many equal l_i. In reverse, future reads R and past updates it. */
static void load_decays(DeltaChunk *c, bool reverse)
{
    const DeltaBuffers *m = &c->item->m;
    const int64_t H = c->item->pass->x->H;
    const Real *l = c->item->pass->rule->log_decay + c->first * H + c->item->h;
    double before[DELTA_CHUNK] = { 0 }, after[DELTA_CHUNK] = { 0 }, sum = 0;
    for (int64_t i = 0; i < c->keys; i++)
        m->decay[i] = l[i * H] < -1000 ? -1000 : l[i * H]; /* finite: 0 times it is not NaN */
    for (int64_t i = c->keys; i < c->rows; i++)
        m->decay[i] = 0;
    for (int64_t i = c->rows - 1; i > 0; i--)
        after[i - 1] = after[i] + (double)m->decay[i];
    for (int64_t i = 0; i < c->rows; i++)
        before[i] = sum += (double)m->decay[i];
    const double pending = c->pending * exp(sum);
    const bool apply = !(pending >= 0.5);
    const Real read = (Real)c->pending, update = (Real)(apply ? 1 : 1 / pending);
    c->all = apply ? flush_factor((Real)pending) : 1;
    c->item->pending = apply ? 1 : pending;
    for (int64_t i = 0; i < c->rows; i++) {
        m->decay[i] = flush_factor(real_exp(m->decay[i]));
        m->past[i] = flush_factor(exp_of_sum(before[i])) * (reverse ? update : read);
        m->future[i] = flush_factor(exp_of_sum(after[i])) * (reverse ? read : update);
    }
}

/* The chunk from a position on; loads beta, past, future and E. */
static DeltaChunk load_chunk(DeltaItem *item, int64_t first, bool reverse)
{
    const DeltaRule *s = item->pass->rule;
    const DeltaBuffers *m = &item->m;
    const int64_t end = first < item->keys ? item->keys : item->end;
    const int64_t count = minimum(DELTA_CHUNK, end - first);
    DeltaChunk c = { .item = item, .first = first, .count = count, .decays = s->log_decay };
    c.keys = maximum(minimum(item->keys - first, count), 0);
    c.rows = round_up(count, UNIT);
    c.pending = item->pending;
    c.all = 1;
    for (int64_t i = 0; i < c.rows; i++)
        m->beta[i] = i < c.keys ? s->beta[(first + i) * s->x.H + item->h] : 0;
    if (!c.decays)
        return c;
    load_decays(&c, reverse);
    memset(m->E, 0, (size_t)(c.rows * DELTA_CHUNK) * sizeof *m->E);
    for (int64_t i = 0; i < c.rows; i++) {
        for (int64_t j = 0; i > 0 && j < DELTA_CHUNK; j++)
            m->E[i * DELTA_CHUNK + j] = flush_factor(m->decay[i] * m->E[(i - 1) * DELTA_CHUNK + j]);
        m->E[i * DELTA_CHUNK + i] = 1;
    }
    return c;
}

/* The chunk's first `count` rows; those after them are 0 */
static HeadRows delta_rows(const DeltaChunk *c, int64_t count)
{
    return (HeadRows){ c->item->h, c->first, count, c->rows };
}

static void load_query(const DeltaChunk *c)
{
    const AttentionInputs *x = c->item->pass->x;
    pack_head_rows(c->item->m.Q, delta_rows(c, c->count), c->item->pass->type, x->query,
                   x->query_stride, x->D);
}

/* Masked keys and values are 0: they may hold NaN. */
static void load_key(const DeltaChunk *c)
{
    const AttentionInputs *x = c->item->pass->x;
    pack_head_rows(c->item->m.K, delta_rows(c, c->keys), c->item->pass->type, x->key, x->key_stride,
                   x->D);
}

static void load_value(const DeltaChunk *c)
{
    const AttentionInputs *x = c->item->pass->x;
    pack_head_rows(c->item->m.V, delta_rows(c, c->keys), c->item->pass->type, x->value,
                   x->value_stride, x->M);
}

/* Rows of out or of its gradient, or with TENSOR_REAL of u. */
static void load_out_like(const DeltaChunk *c, Real *to, int type, const Real *data)
{
    const AttentionInputs *x = c->item->pass->x;
    pack_head_rows(to, delta_rows(c, c->count), type, data, x->H * x->M, x->M);
}

static void store_delta_rows(const DeltaChunk *c, Gradient to, int type, const Real *rows,
                             int64_t stride, int64_t columns)
{
    unpack_head_rows(to, delta_rows(c, c->count), type, rows, stride, columns);
}

/* x <- E o x, the lower triangle, row i times factor_i if it is not NULL; whole rows are faster. */
static void apply_decays(const DeltaChunk *c, Real *restrict x, const Real *restrict factor)
{
    const Real *restrict E = c->item->m.E;
    for (int64_t i = 0; (c->decays || factor) && i < c->rows; i++) {
        const Real f = factor ? factor[i] : 1;
        for (int64_t k = i * DELTA_CHUNK; k < (i + 1) * DELTA_CHUNK; k++)
            x[k] *= c->decays ? f * E[k] : f;
    }
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
    const int64_t size = c->item->pass->D * c->item->pass->M;
    const Real all = c->all; /* which S might alias */
    for (int64_t i = 0; all != 1 && i < size; i++)
        S[i] *= all;
}

/* A_ij = -beta_i E_ij k_i.k_j and P_ij = E_ij q_i.k_j; factor: -beta */
static void key_products(const DeltaChunk *c, Real factor[DELTA_CHUNK])
{
    const DeltaBuffers *m = &c->item->m;
    const int64_t D = c->item->pass->D;
    for (int64_t i = 0; i < c->rows; i++)
        factor[i] = -m->beta[i];
    transpose_rows(m->transposed, DELTA_CHUNK, m->K, c->rows, D);
    lower_triangle(m->A, m->K, m->transposed, c->rows, D);
    lower_triangle(m->P, m->Q, m->transposed, c->rows, D);
    apply_decays(c, m->A, factor);
    apply_decays(c, m->P, NULL);
}

/* dP = G U^T and dA = dU U^T */
static void value_products(const DeltaChunk *c, const Real *du)
{
    const DeltaBuffers *m = &c->item->m;
    const int64_t M = c->item->pass->M;
    transpose_rows(m->transposed, DELTA_CHUNK, m->U, c->rows, M);
    lower_triangle(m->dP, m->G, m->transposed, c->rows, M);
    lower_triangle(m->dA, du, m->transposed, c->rows, M);
}

/* dP <- E o dP and dA <- E o dA, j < i, row i times factor_i */
static void decay_products(const DeltaChunk *c, const Real *factor)
{
    const DeltaBuffers *m = &c->item->m;
    apply_decays(c, m->dP, NULL);
    apply_decays(c, m->dA, factor);
    for (int64_t i = 0; i < c->rows; i++)
        m->dA[i * DELTA_CHUNK + i] = 0;
}

/* to [D, M] or its transpose [M, D] = the head's state */
static void load_delta_state(const DeltaItem *item, Real *to, const Real *states, bool transposed)
{
    const AttentionInputs *x = item->pass->x;
    const int64_t head = item->b * x->H + item->h;
    pack_state(to, state_of_head(states, head, x->D * x->M), x->D, x->M, transposed);
}

static void store_delta_state(const DeltaItem *item, Real *to, const Real *S)
{
    const DeltaPass *p = item->pass;
    const int64_t D = p->x->D, M = p->x->M, at = (item->b * p->x->H + item->h) * D * M;
    for (int64_t i = 0; to && i < D * M; i++)
        to[at + i] = (Real)(item->pending * (double)S[i / M * p->M + i % M]);
}

/* -------------------------------------------------------------------------------------- forward */

/* U = diag(beta) (V - diag(past) K S), (I - A) U = U      out = diag(past) Q S + P U
 * S <- e^(c_C) S + K^T diag(future) U */
static void forward_chunk(const DeltaChunk *c, Real *out, Real *u)
{
    const DeltaPass *p = c->item->pass;
    const DeltaBuffers *m = &c->item->m;
    const int64_t D = p->D, M = p->M, rows = c->rows, H = p->x->H;
    Real factor[DELTA_CHUNK];
    load_query(c);
    load_key(c);
    load_value(c);
    key_products(c, factor);
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
    if (s->decays > 1) {
        delta_positions_forward(type, out, u, final_state, s);
        return;
    }
    const DeltaPass p = delta_pass(type, s, false);
    DELTA_ITEMS(item, &p)
    {
        load_delta_state(&item, item.m.S, s->state, false);
        for (int64_t i = item.begin; i < item.end;) {
            const DeltaChunk c = load_chunk(&item, i, false);
            forward_chunk(&c, out, u);
            i += c.count;
        }
        store_delta_state(&item, final_state, item.m.S);
    }
    device_workspace_free(p.buffers);
}

static void delta_rule_forward_cpu(Real *out, Real *u, Real *final_state, const DeltaRule *s)
{
    delta_forward(TENSOR_REAL, out, u, final_state, s);
}

static void delta_rule_forward_bf16(Real *out, Real *u, Real *final_state, const DeltaRule *s)
{
    delta_forward(TENSOR_BF16, out, u, final_state, s);
}

/* ------------------------------------------------------------------------------------- backward */

typedef struct DeltaUpstream {
    DeltaRuleGradient d;
    const Real *dout, *dfinal_state, *u;
} DeltaUpstream;

/* The place of R after the chunk, transposed, if a segment ends with it; or NULL. */
static Real *segment_R(const DeltaChunk *c, const DeltaUpstream *g)
{
    const DeltaItem *item = c->item;
    const int64_t next = c->first + c->count - item->begin, segment = delta_segment(next - 1);
    const bool ends = c->first + c->count == item->keys || delta_segment(next) != segment;
    return g->d.log_decay.data && c->keys > 0 && ends
               ? item->m.segment_R + segment * item->pass->D * item->pass->M
               : NULL;
}

/* across_i = -u_i.Rk_i, Rk_i = future_i R^T k_i, but for a segment's last position: update_state */
static void begin_across(const DeltaChunk *c, const DeltaUpstream *g, const Real *Rk)
{
    const DeltaBuffers *m = &c->item->m;
    const int64_t D = c->item->pass->D, M = c->item->pass->M;
    Real *across = m->across + c->first - c->item->begin, *R_t = segment_R(c, g);
    for (int64_t i = 0; g->d.log_decay.data && i < c->count; i++)
        across[i] = -dot(m->U + i * M, Rk + i * M, M);
    for (int64_t i = 0; R_t && i < D * M; i++)
        R_t[i] = (Real)c->pending * m->S_t[i];
    if (R_t)
        across[c->count - 1] = 0;
}

/* <S, R> from the transposes */
static double delta_state_product(const DeltaItem *item, const Real *R_t)
{
    double sum = 0;
    for (int64_t i = 0; i < item->pass->D * item->pass->M; i++)
        sum += (double)item->m.S_t[i] * (double)R_t[i];
    return item->pending * sum;
}

/* S <- e^(c_C) S + K^T diag(future) U, transposed. A segment's last dl is <S, R> without the last
 * position's pair k u^T, which may have no decay. Returns the next segment's first. */
static double update_state(const DeltaChunk *c, const DeltaUpstream *g)
{
    const DeltaBuffers *m = &c->item->m;
    const int64_t D = c->item->pass->D, M = c->item->pass->M, last = c->count - 1;
    const Real *R_t = segment_R(c, g);
    decay_state_of(c, m->S_t);
    decay_rows(c, m->row_M, m->U, m->future, M);
    add_product_transposed(m->S_t, m->row_M, M, m->K, M, R_t ? last : c->count, D);
    if (!R_t)
        return 0;
    m->across[c->first + last - c->item->begin] += (Real)delta_state_product(c->item, R_t);
    add_product_transposed(m->S_t, m->row_M + last * M, M, m->K + last * D, M, 1, D);
    return delta_state_product(c->item, R_t);
}

/* within_i = sum_{t>=i>j} W_tj */
static void sum_within(const DeltaChunk *c, const DeltaUpstream *g)
{
    const DeltaBuffers *m = &c->item->m;
    Real *within = m->within + c->first - c->item->begin;
    Real column[DELTA_CHUNK] = { 0 }; /* sum_{t>=i} W_tj */
    for (int i = (int)c->rows - 1; g->d.log_decay.data && i >= 0; i--) {
        const Real *restrict P = m->P + i * DELTA_CHUNK, *restrict dP = m->dP + i * DELTA_CHUNK;
        const Real *restrict A = m->A + i * DELTA_CHUNK, *restrict dA = m->dA + i * DELTA_CHUNK;
        Real sum = 0;
        SUM(+, sum)
        for (int j = 0; j < DELTA_CHUNK; j++) { /* whole vectors */
            column[j] += j < i ? P[j] * dP[j] + A[j] * dA[j] : 0;
            sum += j < i ? column[j] : 0;
        }
        within[i] = sum;
    }
}

/* dU = diag(future) K R + P^T G, (I - A^T) dU = dU
 * Ru = diag(future) U R^T + dP^T Q + dA^T K      dP = E o G U^T      dA = E o -dV U^T
 * R <- e^(c_C) R + (diag(past) Q)^T G - (diag(past) K)^T dV */
static void backward_chunk_reverse(const DeltaChunk *c, const DeltaUpstream *g)
{
    const DeltaPass *p = c->item->pass;
    const DeltaBuffers *m = &c->item->m;
    const int64_t D = p->D, M = p->M, rows = c->rows, at = c->first - c->item->begin;
    Real *du = m->du + at * M, *Ru = m->Ru + at * D, factor[DELTA_CHUNK];
    load_query(c);
    load_key(c);
    load_out_like(c, m->G, p->type, g->dout);
    load_out_like(c, m->U, TENSOR_REAL, g->u);
    key_products(c, factor);
    transpose_rows(m->S_t, p->D, m->R, p->D, p->M);
    set_product(du, m->K, D, m->R, M, rows, D, M);
    decay_rows(c, du, du, m->future, M);
    begin_across(c, g, du);
    add_upper_product(du, m->P, m->G, rows, c->count, M);
    substitute_backward(du, m->A, rows, M);
    value_products(c, du);
    sum_within(c, g);
    decay_products(c, factor);
    set_product(Ru, m->U, M, m->S_t, D, rows, M, D);
    decay_rows(c, Ru, Ru, m->future, D);
    add_upper_product(Ru, m->dP, m->Q, rows, c->count, D);
    add_upper_product(Ru, m->dA, m->K, rows, c->count, D);
    decay_state_of(c, m->R);
    decay_rows(c, m->G, m->G, m->past, M);
    for (int64_t i = 0; c->decays && i < rows; i++)
        factor[i] *= m->past[i];
    scale_rows(m->row_M, du, factor, rows, M);
    add_product_transposed(m->R, m->Q, D, m->G, D, c->count, M);
    add_product_transposed(m->R, m->K, D, m->row_M, D, c->count, M);
}

/* across_i += q_i.X_i - beta_i k_i.Z_i, X = diag(past) G S^T, Z = diag(past) dU S^T */
static void add_to_across(const DeltaChunk *c, const DeltaUpstream *g, const Real *X, const Real *Z)
{
    const DeltaBuffers *m = &c->item->m;
    const int64_t D = c->item->pass->D, at = c->first - c->item->begin;
    for (int64_t i = 0; g->d.log_decay.data && i < c->count; i++)
        m->across[at + i] +=
            dot(m->Q + i * D, X + i * D, D) - m->beta[i] * dot(m->K + i * D, Z + i * D, D);
}

/* dl from position begin, where it is dl, to end, where it is 0 without across: summed from both
 * ends up to half of the sum of magnitudes, so that small dl_i do not have large errors. */
static void sum_log_decays(const DeltaItem *item, const DeltaUpstream *g, int64_t begin,
                           int64_t end, double dl)
{
    const Real *across = item->m.across - item->begin, *within = item->m.within - item->begin;
    const int64_t H = item->pass->x->H;
    double sum = 0, half = 0;
    for (int64_t i = begin; i < end; i++)
        half += (double)real_abs(across[i]) / 2;
    for (; begin < end && sum <= half; begin++) {
        gradient_add(g->d.log_decay, begin * H + item->h, (Real)(dl + (double)within[begin]));
        dl -= (double)across[begin];
        sum += (double)real_abs(across[begin]);
    }
    dl = 0;
    for (int64_t i = end - 1; i >= begin; i--) {
        dl += (double)across[i];
        gradient_add(g->d.log_decay, i * H + item->h, (Real)(dl + (double)within[i]));
    }
}

static bool forgets(Real l)
{
    return l < -70 && flush_factor(real_exp(l)) == 0;
}

/* dl of the segment that ends with the chunk; it is 0 where e^(l_i) is. */
static void sum_segment(const DeltaChunk *c, const DeltaUpstream *g)
{
    const DeltaItem *item = c->item;
    const Real *l = item->pass->rule->log_decay + item->h;
    const int64_t H = item->pass->x->H, end = c->first + c->count;
    const int64_t begin = segment_begin(delta_segment(end - 1 - item->begin));
    double dl = item->dl;
    for (int64_t i = item->begin + begin, next; i < end; i = next) {
        for (next = i + 1; next < end && !forgets(l[next * H]);)
            next++;
        sum_log_decays(item, g, i, next, forgets(l[i * H]) ? 0 : dl);
    }
}

/* dk = Ru - beta z, dv = beta du and dbeta = du.v - k.z; z becomes dk, du dv */
static void combine_rows(const DeltaChunk *c, const DeltaUpstream *g, Real *z)
{
    const DeltaPass *p = c->item->pass;
    const DeltaBuffers *m = &c->item->m;
    const int64_t D = p->D, M = p->M, at = c->first - c->item->begin;
    for (int64_t i = 0; i < c->count; i++) {
        Real *du = m->du + (at + i) * M, *z_i = z + i * D;
        const Real *Ru = m->Ru + (at + i) * D, beta = m->beta[i];
        if (g->d.beta.data)
            gradient_add(g->d.beta, (c->first + i) * p->x->H + c->item->h,
                         i < c->keys ? dot(m->V + i * M, du, M) - dot(m->K + i * D, z_i, D) : 0);
        for (int64_t d = 0; d < D; d++)
            z_i[d] = i < c->keys ? Ru[d] - beta * z_i[d] : 0;
        for (int64_t v = 0; v < M; v++)
            du[v] = i < c->keys ? beta * du[v] : 0;
    }
}

/* dQ = diag(past) G S^T + dP K      Z = diag(past) dU S^T + dA K      dP = E o G U^T
 * S <- e^(c_C) S + K^T diag(future) U                                  dA = E o dU U^T, j < i */
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
    decay_products(c, NULL);
    set_product(dq, m->G, M, m->S_t, D, rows, M, D);
    decay_rows(c, dq, dq, m->past, D);
    set_product(z, du, M, m->S_t, D, rows, M, D);
    decay_rows(c, z, z, m->past, D);
    add_to_across(c, g, dq, z);
    add_lower_product(dq, m->dP, m->K, rows, c->count, D);
    add_lower_product(z, m->dA, m->K, rows, c->count, D);
    const double next_dl = update_state(c, g);
    if (segment_R(c, g)) {
        sum_segment(c, g);
        c->item->dl = next_dl;
    }
    combine_rows(c, g, z);
    store_delta_rows(c, g->d.x.query, p->type, dq, x->query_stride, x->D);
    store_delta_rows(c, g->d.x.key, p->type, z, x->key_stride, x->D);
    store_delta_rows(c, g->d.x.value, p->type, du, x->value_stride, x->M);
}

/* The chunk that ends before a position. */
static DeltaChunk previous_chunk(DeltaItem *item, int64_t end)
{
    const int64_t begin = end > item->keys ? item->keys : item->begin;
    return load_chunk(item, begin + (end - 1 - begin) / DELTA_CHUNK * DELTA_CHUNK, true);
}

static void delta_backward(TensorType type, DeltaUpstream g, const DeltaRule *s)
{
    if (s->decays > 1) {
        delta_positions_backward(type, g.d, g.dout, g.dfinal_state, g.u, s);
        return;
    }
    const DeltaPass p = delta_pass(type, s, true);
    DELTA_ITEMS(item, &p)
    {
        load_delta_state(&item, item.m.R, g.dfinal_state, false);
        for (int64_t end = item.end; end > item.begin;) {
            const DeltaChunk c = previous_chunk(&item, end);
            backward_chunk_reverse(&c, &g);
            end = c.first;
        }
        store_delta_state(&item, g.d.state, item.m.R);
        load_delta_state(&item, item.m.S_t, s->state, true);
        for (int64_t i = 0; i < p.D * p.M; i++)
            item.dl += (double)item.m.S_t[i] * (double)item.m.R[i % p.D * p.M + i / p.D];
        item.dl *= item.pending;
        item.pending = 1;
        for (int64_t i = item.begin; i < item.end;) {
            const DeltaChunk c = load_chunk(&item, i, false);
            backward_chunk(&c, &g);
            i += c.count;
        }
        for (int64_t i = item.keys; g.d.log_decay.data && i < item.end; i++)
            gradient_add(g.d.log_decay, i * s->x.H + item.h, 0);
    }
    device_workspace_free(p.buffers);
}

static void delta_rule_backward_cpu(DeltaRuleGradient d, const Real *dout, const Real *dfinal_state,
                                    const Real *u, const DeltaRule *s)
{
    delta_backward(TENSOR_REAL, (DeltaUpstream){ d, dout, dfinal_state, u }, s);
}

static void delta_rule_backward_bf16(DeltaRuleGradient d, const Real *dout,
                                     const Real *dfinal_state, const Real *u, const DeltaRule *s)
{
    delta_backward(TENSOR_BF16, (DeltaUpstream){ d, dout, dfinal_state, u }, s);
}

const DeltaKernels delta_cpu = { delta_rule_forward_cpu, delta_rule_backward_cpu };
const DeltaKernels delta_cpu_bf16 = { delta_rule_forward_bf16, delta_rule_backward_bf16 };
