/* Gated linear attention on the CPU: four scans by position, whose states stay in vector registers,
 * in tiles, while the rows of a chunk stream past them. A head of a sequence is an item of work.
 *
 * A scan is causal linear attention's (ops/cpu/attention/linear/scan_by_position.h) with one
 * instruction more per vector of T, the decay e_i = e^(l_i):
 *     out  T = S   [D, M]      T <- diag(e_i) T      T <- T + k_i v_i^T      out_i = T^T q_i
 *     Zg   T = S^T [M, D]      T <- T diag(e_i)      Zg_i = T^T g_i          T <- T + v_i k_i^T
 *     Rv   T = R'^T [M, D]     Rv_i = T^T v_i        T <- T + g_i q_i^T      T <- T diag(e_i)
 *     dv   T = R'  [D, M]      T <- T + q_i g_i^T    dv_i = T^T k_i          T <- diag(e_i) T
 * the last two from the last position. Where T is transposed it is read without the position's own
 * pair: so dl has what it needs, and dq_i = Zg_i + (v_i.g_i) k_i, dk_i = Rv_i + (v_i.g_i) q_i.
 *
 * No exponent is positive, and l_i = -infinity is a factor 0 like others. But a state multiplied by
 * 100 000 rounded e_i that are nearly 1 would be off by 1e-3. Weak decays stay pending: T is stored
 * without their product, e^L with the sum L in double, until that is below 1/2; in the meantime e_i
 * is 1, what is read is multiplied by f_i = e^L, and what is added is divided by it. */
#include "ext/gated_linear_attention/kernels.h"
#include "ops/cpu/shared/head_rows.h"

enum { GATED_LINEAR_CHUNK = 64 };             /* positions per chunk */
static const double GATED_LINEAR_WEAK = -0.7; /* the sum L, above which decays are pending */

/* A pass over all sequences and heads. */
typedef struct GatedLinearPass {
    int type; /* of query, key, value, out and their gradients; all others are Real */
    const GatedLinear *s;
    const AttentionInputs *x;
    bool backward;
    int64_t D, M;   /* padded */
    int64_t length; /* positions of the longest sequence, in whole chunks */
    int64_t buffer; /* elements of a thread's buffers */
    Real *buffers;  /* of all threads */
} GatedLinearPass;

/* A thread's buffers. C: GATED_LINEAR_CHUNK rows. */
typedef struct GatedLinearBuffers {
    Real *Q, *K, *decay, *row_D; /* [C, D] */
    Real *f, *Q_f, *K_f;         /* [C, D]: f_i; queries and keys multiplied or divided by it */
    Real *V, *G, *row_M;         /* [C, M] */
    Real *S, *S_t;               /* [D, M] and [M, D]; backward R in both */
    Real *Zg;                    /* [length, D]: of the whole sequence */
    Real *vg;                    /* [C]: v_i.g_i */
    Real *sum;                   /* [D]: of a chunk's l_i */
    double *pending;             /* [D]: the sum L of the pending decays */
    double *dl;                  /* [D]: of the last position that was done */
} GatedLinearBuffers;

static double *allocate_doubles(Real *memory, int64_t *used, int64_t count)
{
    enum { REALS = sizeof(double) / sizeof(Real) };
    return (double *)(void *)allocate(memory, used, REALS * count);
}

/* The buffers in a thread's memory, or NULL; used: their size. */
static GatedLinearBuffers allocate_gla(const GatedLinearPass *p, Real *memory, int64_t *used)
{
    enum { C = GATED_LINEAR_CHUNK };
    GatedLinearBuffers m = { 0 };
    *used = 0;
    m.Q = allocate(memory, used, C * p->D);
    m.K = allocate(memory, used, C * p->D);
    m.decay = allocate(memory, used, C * p->D);
    m.row_D = allocate(memory, used, C * p->D);
    m.V = allocate(memory, used, C * p->M);
    m.G = allocate(memory, used, C * p->M);
    m.row_M = allocate(memory, used, C * p->M);
    m.S = allocate(memory, used, p->D * p->M);
    m.f = allocate(memory, used, C * p->D);
    m.Q_f = allocate(memory, used, C * p->D);
    m.K_f = allocate(memory, used, C * p->D);
    m.sum = allocate(memory, used, p->D);
    m.pending = allocate_doubles(memory, used, p->D);
    if (p->backward) {
        m.S_t = allocate(memory, used, p->D * p->M);
        m.Zg = allocate(memory, used, p->length * p->D);
        m.vg = allocate(memory, used, C);
        m.dl = allocate_doubles(memory, used, p->D);
    }
    return m;
}

static GatedLinearPass gated_linear_pass(TensorType type, const GatedLinear *s, bool backward)
{
    const AttentionInputs *x = &s->x;
    GatedLinearPass p = { .type = (int)type, .s = s, .x = x, .backward = backward };
    for (int64_t b = 0; b < x->B; b++)
        p.length = maximum(p.length, first_position(x, b + 1) - first_position(x, b));
    p.D = round_up(x->D, UNIT);
    p.M = round_up(x->M, UNIT);
    allocate_gla(&p, NULL, &p.buffer);
    p.buffers = device_workspace(device_threads() * p.buffer);
    return p;
}

/* A head of a sequence. */
typedef struct GatedLinearItem {
    const GatedLinearPass *pass;
    GatedLinearBuffers m;              /* the thread's */
    int64_t head, h, begin, end, keys; /* begin <= i < end of the positions of all sequences; from
                                        * keys on they are masked */
} GatedLinearItem;

static GatedLinearItem gated_linear_item(const GatedLinearPass *p, int64_t head)
{
    const AttentionInputs *x = p->x;
    const Head at = head_of(x, head);
    int64_t used;
    GatedLinearItem item = { .pass = p, .head = head, .h = at.h, .begin = at.begin, .end = at.end };
    item.m = allocate_gla(p, p->buffers + omp_get_thread_num() * p->buffer, &used);
    item.keys = x->key_lengths ? at.begin + x->key_lengths[head / x->H] : at.end;
    return item;
}

static int threads_of_gla(const GatedLinearPass *p)
{
    const int64_t rows = first_position(p->x, p->x->B) * p->x->H;
    return device_threads_for(rows, (p->backward ? 0.25 : 0.07) * (double)(p->D * p->M));
}

/* GATED_LINEAR_ITEMS(item, p) statement: for all items, divided among the threads. */
#define GATED_LINEAR_ITEMS(item, p)                                                                \
    PRAGMA(omp parallel for schedule(dynamic) num_threads(threads_of_gla(p)))                      \
    for (int64_t index = 0; index < (p)->x->B * (p)->x->H; index++)                                \
        for (GatedLinearItem item = gated_linear_item(p, index); item.pass; item.pass = NULL)

/* ---------------------------------------------------------------------------------------- scans */

/* The operands of a scan: x, y [count, Y], w, o [count, W], T [Y, W], decay [count, columns] */
typedef struct GatedLinearScan {
    const Real *x, *y, *w, *decay;
    Real *o, *T;
    int64_t count, Y, W, columns;
} GatedLinearScan;

/* The first position's rows in a tile */
ALWAYS_INLINE GatedLinearScan gated_linear_scan_from(bool transposed, GatedLinearScan s, int64_t r,
                                                     int64_t c)
{
    s.x += r;
    s.y += r;
    s.w += c;
    s.o += c;
    s.decay += transposed ? c : r;
    s.T += r * s.W + c;
    return s;
}

/* T <- diag(e) T, or transposed T diag(e), of a tile */
ALWAYS_INLINE void decay_tile(bool transposed, int vectors, Vector (*tile)[2], const Real *e)
{
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < vectors; c++)
            tile[r][c] *= transposed ? vector(e + c * LANES) : broadcast(e[r]);
}

/* o <- o + T^T x, of a tile */
ALWAYS_INLINE void read_tile(int vectors, Vector *o, Vector (*tile)[2], const Real *x)
{
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < vectors; c++)
            o[c] = multiply_add(broadcast(x[r]), tile[r][c], o[c]);
}

/* A scan of the tile in the corner of T, ROWS rows by some vectors of columns. */
ALWAYS_INLINE void gated_linear_scan_tile(bool transposed, bool reverse, int vectors,
                                          GatedLinearScan s)
{
    Vector tile[ROWS][2];
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < vectors; c++)
            tile[r][c] = vector(s.T + r * s.W + c * LANES);
    for (int64_t n = 0; n < s.count; n++) {
        const int64_t i = reverse ? s.count - 1 - n : n;
        const Real *x = s.x + i * s.Y, *y = s.y + i * s.Y, *e = s.decay + i * s.columns;
        Vector o[2];
        for (int c = 0; c < vectors; c++)
            o[c] = vector(s.o + i * s.W + c * LANES);
        if (!reverse)
            decay_tile(transposed, vectors, tile, e);
        if (transposed)
            read_tile(vectors, o, tile, x);
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < vectors; c++)
                tile[r][c] =
                    multiply_add(broadcast(y[r]), vector(s.w + i * s.W + c * LANES), tile[r][c]);
        if (!transposed)
            read_tile(vectors, o, tile, x);
        if (reverse)
            decay_tile(transposed, vectors, tile, e);
        for (int c = 0; c < vectors; c++)
            *at_vector(s.o + i * s.W + c * LANES) = o[c];
    }
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < vectors; c++)
            *at_vector(s.T + r * s.W + c * LANES) = tile[r][c];
}

ALWAYS_INLINE void gated_linear_scan(bool transposed, bool reverse, GatedLinearScan s)
{
    memset(s.o, 0, (size_t)(s.count * s.W) * sizeof *s.o);
    for (int64_t c = 0; c < s.W; c += 2 * LANES)
        for (int64_t r = 0; r < s.Y; r += ROWS) {
            const GatedLinearScan tile = gated_linear_scan_from(transposed, s, r, c);
            if (c + 2 * LANES <= s.W)
                gated_linear_scan_tile(transposed, reverse, 2, tile);
            else
                gated_linear_scan_tile(transposed, reverse, 1, tile);
        }
}

/* The four scans: gated_linear_scan is inlined once into each. */
WHOLE_VECTORS static void scan_out(GatedLinearScan s)
{
    gated_linear_scan(false, false, s);
}

WHOLE_VECTORS static void scan_Zg(GatedLinearScan s)
{
    gated_linear_scan(true, false, s);
}

WHOLE_VECTORS static void scan_Rv(GatedLinearScan s)
{
    gated_linear_scan(true, true, s);
}

WHOLE_VECTORS static void scan_dv(GatedLinearScan s)
{
    gated_linear_scan(false, true, s);
}

/* --------------------------------------------------------------------------------------- chunks */

/* Some positions of an item. */
typedef struct GatedLinearChunk {
    GatedLinearItem *item;
    int64_t first, count; /* first: of the positions of all sequences */
    int64_t keys;         /* positions that are not masked: the first ones */
    bool pending;         /* whether any of its decays is; else f is 1, and not computed */
} GatedLinearChunk;

static GatedLinearChunk gated_linear_chunk(GatedLinearItem *item, int64_t first)
{
    GatedLinearChunk c = { .item = item, .first = first };
    c.count = minimum(GATED_LINEAR_CHUNK, item->end - first);
    c.keys = maximum(minimum(item->keys - first, c.count), 0);
    return c;
}

/* The chunk's first `count` rows; those after them are 0 */
static HeadRows gated_linear_rows(const GatedLinearChunk *c, int64_t count)
{
    return (HeadRows){ c->item->h, c->first, count, c->count };
}

static void gated_linear_load_query(const GatedLinearChunk *c)
{
    const AttentionInputs *x = c->item->pass->x;
    pack_head_rows(c->item->m.Q, gated_linear_rows(c, c->count), c->item->pass->type, x->query,
                   x->query_stride, x->D);
}

/* Masked ones are 0: they may hold NaN. */
static void gated_linear_load_key_value(const GatedLinearChunk *c)
{
    const AttentionInputs *x = c->item->pass->x;
    const HeadRows rows = gated_linear_rows(c, c->keys);
    pack_head_rows(c->item->m.K, rows, c->item->pass->type, x->key, x->key_stride, x->D);
    pack_head_rows(c->item->m.V, rows, c->item->pass->type, x->value, x->value_stride, x->M);
}

/* g, and v.g */
static void gated_linear_load_upstream(const GatedLinearChunk *c, const Real *dout)
{
    const GatedLinearBuffers *m = &c->item->m;
    const AttentionInputs *x = c->item->pass->x;
    const int64_t M = c->item->pass->M;
    pack_head_rows(m->G, gated_linear_rows(c, c->count), c->item->pass->type, dout, x->H * x->M,
                   x->M);
    for (int64_t i = 0; i < c->count; i++)
        m->vg[i] = dot(m->V + i * M, m->G + i * M, M);
}

static void gated_linear_store(const GatedLinearChunk *c, Gradient to, int type, const Real *rows,
                               int64_t stride, int64_t columns)
{
    unpack_head_rows(to, gated_linear_rows(c, c->count), type, rows, stride, columns);
}

/* sum [D] of the rows of l [count, D] */
WHOLE_VECTORS static void sum_rows_of(Real *restrict sum, const Real *restrict l, int64_t count,
                                      int64_t D)
{
    memset(sum, 0, (size_t)D * sizeof *sum);
    for (int64_t i = 0; i < count; i++)
        for (int64_t d = 0; d < D; d++)
            sum[d] += l[i * D + d];
}

/* e = e^l in the place of l, or 0 */
WHOLE_VECTORS static void exponentials(Real *e, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        e[i] = flush_factor(real_exp(e[i]));
}

/* A position's log decays l and log f. If `weak` is not 0, l is pending: it becomes 0, and
 * `pending` gains it. Log f is `pending` with it or, in reverse, where T decays after the
 * position, without. */
WHOLE_VECTORS static void defer_row(Real *restrict l, Real *restrict log_f,
                                    double *restrict pending, const Real *restrict weak, int64_t D,
                                    bool reverse)
{
    for (int64_t d = 0; reverse && d < D; d++)
        log_f[d] = (Real)pending[d];
    for (int64_t d = 0; d < D; d++) {
        const double with = pending[d] + (double)l[d];
        pending[d] = weak[d] != 0 ? with : 0;
        l[d] = weak[d] != 0 ? 0 : l[d];
    }
    for (int64_t d = 0; !reverse && d < D; d++)
        log_f[d] = (Real)pending[d];
}

/* decay and f. Decays that are pending no longer are added to the first l. */
static void gated_linear_load_decay(GatedLinearChunk *c, bool reverse)
{
    const AttentionInputs *x = c->item->pass->x;
    const GatedLinearBuffers *m = &c->item->m;
    const int64_t D = c->item->pass->D, last = c->count - 1;
    Real *first = m->decay + (reverse ? last : 0) * D;
    pack_head_rows(m->decay, gated_linear_rows(c, c->keys), TENSOR_REAL,
                   c->item->pass->s->log_decay, x->H * x->D, x->D);
    sum_rows_of(m->sum, m->decay, c->count, D);
    c->pending = false;
    for (int64_t d = 0; d < x->D; d++) {
        const bool weak = m->pending[d] + (double)m->sum[d] > GATED_LINEAR_WEAK;
        c->pending |= weak || m->pending[d] != 0;
        first[d] += weak ? 0 : (Real)m->pending[d];
        m->sum[d] = weak;
    }
    for (int64_t n = 0; c->pending && n < c->count; n++) {
        const int64_t at = (reverse ? last - n : n) * D;
        defer_row(m->decay + at, m->f + at, m->pending, m->sum, D, reverse);
    }
    exponentials(m->decay, c->count * D);
    if (c->pending)
        exponentials(m->f, c->count * D);
}

/* rows [count, D] multiplied, or divided, by f: stored in `to`, which is returned. Where no decay
 * is pending f is 1: returns rows. */
WHOLE_VECTORS static const Real *times_f(const GatedLinearChunk *c, Real *to, const Real *rows)
{
    const Real *f = c->item->m.f;
    for (int64_t k = 0; c->pending && k < c->count * c->item->pass->D; k += LANES)
        *at_vector(to + k) = vector(rows + k) * vector(f + k);
    return c->pending ? to : rows;
}

WHOLE_VECTORS static const Real *over_f(const GatedLinearChunk *c, Real *to, const Real *rows)
{
    const Real *f = c->item->m.f;
    for (int64_t k = 0; c->pending && k < c->count * c->item->pass->D; k += LANES)
        *at_vector(to + k) = vector(rows + k) / vector(f + k);
    return c->pending ? to : rows;
}

static void clear_pending(const GatedLinearItem *item)
{
    memset(item->m.pending, 0, (size_t)item->pass->D * sizeof *item->m.pending);
}

/* to [D, M] or its transpose [M, D] = the head's state */
static void gated_linear_load_state(const GatedLinearItem *item, Real *to, const Real *states,
                                    bool transposed)
{
    const AttentionInputs *x = item->pass->x;
    pack_state(to, state_of_head(states, item->head, x->D * x->M), x->D, x->M, transposed);
}

static void gated_linear_store_state(const GatedLinearItem *item, Real *states, const Real *S)
{
    const GatedLinearPass *p = item->pass;
    const int64_t D = p->x->D, M = p->x->M;
    for (int64_t k = 0; states && k < D * M; k++)
        states[item->head * D * M + k] =
            (Real)exp(item->m.pending[k / M]) * S[k / M * p->M + k % M];
}

/* -------------------------------------------------------------------------------------- forward */

static void gated_linear_forward_chunk(GatedLinearChunk *c, Real *out)
{
    const GatedLinearPass *p = c->item->pass;
    const GatedLinearBuffers *m = &c->item->m;
    gated_linear_load_query(c);
    gated_linear_load_key_value(c);
    gated_linear_load_decay(c, false);
    const Real *Q = times_f(c, m->Q, m->Q), *K = over_f(c, m->K, m->K);
    scan_out((GatedLinearScan){ Q, K, m->V, m->decay, m->row_M, m->S, c->count, p->D, p->M, p->D });
    gated_linear_store(c, (Gradient){ out, false }, p->type, m->row_M, p->x->H * p->x->M, p->x->M);
}

static void gated_linear_forward(TensorType type, Real *out, Real *final_state,
                                 const GatedLinear *s)
{
    const GatedLinearPass p = gated_linear_pass(type, s, false);
    GATED_LINEAR_ITEMS(item, &p)
    {
        gated_linear_load_state(&item, item.m.S, s->state, false);
        clear_pending(&item);
        for (int64_t i = item.begin; i < item.end; i += GATED_LINEAR_CHUNK) {
            GatedLinearChunk c = gated_linear_chunk(&item, i);
            gated_linear_forward_chunk(&c, out);
        }
        gated_linear_store_state(&item, final_state, item.m.S);
    }
    device_workspace_free(p.buffers);
}

static void gated_linear_forward_cpu(Real *out, Real *final_state, const GatedLinear *s)
{
    gated_linear_forward(TENSOR_REAL, out, final_state, s);
}

static void gated_linear_forward_bf16(Real *out, Real *final_state, const GatedLinear *s)
{
    gated_linear_forward(TENSOR_BF16, out, final_state, s);
}

/* ------------------------------------------------------------------------------------- backward */

typedef struct GatedLinearUpstream {
    GatedLinearGradient d;
    const Real *dout, *dfinal_state;
} GatedLinearUpstream;

/* to_i = x_i + (v_i.g_i) y_i, to and x may be the same */
WHOLE_VECTORS static void add_own_pairs(Real *to, const Real *x, const Real *vg, const Real *y,
                                        int64_t count, int64_t D)
{
    for (int64_t i = 0; i < count; i++)
        for (int64_t c = i * D; c < (i + 1) * D; c += LANES)
            *at_vector(to + c) = multiply_add(broadcast(vg[i]), vector(y + c), vector(x + c));
}

/* Zg, and dq = Zg + (v.g) k */
static void gated_linear_backward_chunk(GatedLinearChunk *c, const GatedLinearUpstream *g)
{
    const GatedLinearPass *p = c->item->pass;
    const GatedLinearBuffers *m = &c->item->m;
    Real *Zg = m->Zg + (c->first - c->item->begin) * p->D;
    gated_linear_load_key_value(c);
    gated_linear_load_upstream(c, g->dout);
    gated_linear_load_decay(c, false);
    const Real *K = over_f(c, m->K_f, m->K);
    scan_Zg((GatedLinearScan){ m->G, m->V, K, m->decay, Zg, m->S_t, c->count, p->M, p->D, p->D });
    times_f(c, Zg, Zg);
    add_own_pairs(m->row_D, Zg, m->vg, m->K, c->count, p->D);
    gated_linear_store(c, g->d.x.query, p->type, m->row_D, p->x->query_stride, p->x->D);
}

/* dl_{N+1} = <S_N, F>_d */
static void gated_linear_begin_dl(const GatedLinearItem *item, const Real *F_t)
{
    const int64_t D = item->pass->D;
    memset(item->m.dl, 0, (size_t)D * sizeof *item->m.dl);
    for (int64_t k = 0; k < D * item->pass->M; k++)
        item->m.dl[k % D] += (double)item->m.S_t[k] * (double)F_t[k];
    for (int64_t d = 0; d < D; d++)
        item->m.dl[d] *= exp(item->m.pending[d]);
}

/* dl_i [D] = dl_{i+1} + q o Zg - k o Rv, but 0 where the decay e^(l_i) is; Zg becomes dl_i */
WHOLE_VECTORS static void next_dl(double *restrict dl, Real *restrict Zg, const Real *restrict q,
                                  const Real *restrict k, const Real *restrict Rv,
                                  const Real *restrict decay, int64_t D)
{
    for (int64_t d = 0; d < D; d++) {
        const double sum = dl[d] + ((double)q[d] * (double)Zg[d] - (double)k[d] * (double)Rv[d]);
        dl[d] = decay[d] == 0 ? 0 : sum;
        Zg[d] = (Real)dl[d];
    }
}

static void gated_linear_store_dl(const GatedLinearChunk *c, const GatedLinearUpstream *g)
{
    const GatedLinearPass *p = c->item->pass;
    const GatedLinearBuffers *m = &c->item->m;
    const int64_t D = p->D;
    Real *dl = m->Zg + (c->first - c->item->begin) * D;
    for (int64_t i = c->count - 1; i >= 0; i--)
        next_dl(m->dl, dl + i * D, m->Q + i * D, m->K + i * D, m->row_D + i * D, m->decay + i * D,
                D);
    if (c->first == c->item->begin && !p->s->state)
        memset(dl, 0, (size_t)D * sizeof *dl);
    memset(dl + c->keys * D, 0, (size_t)((c->count - c->keys) * D) * sizeof *dl);
    gated_linear_store(c, g->d.log_decay, TENSOR_REAL, dl, p->x->H * p->x->D, p->x->D);
}

/* Rv, dl, dk = Rv + (v.g) q, and dv */
static void gated_linear_backward_chunk_reverse(GatedLinearChunk *c, const GatedLinearUpstream *g)
{
    const GatedLinearPass *p = c->item->pass;
    const AttentionInputs *x = p->x;
    const GatedLinearBuffers *m = &c->item->m;
    gated_linear_load_query(c);
    gated_linear_load_key_value(c);
    gated_linear_load_upstream(c, g->dout);
    gated_linear_load_decay(c, true);
    const Real *Q = over_f(c, m->Q_f, m->Q), *K = times_f(c, m->K_f, m->K);
    scan_Rv(
        (GatedLinearScan){ m->V, m->G, Q, m->decay, m->row_D, m->S_t, c->count, p->M, p->D, p->D });
    scan_dv((GatedLinearScan){ K, Q, m->G, m->decay, m->row_M, m->S, c->count, p->D, p->M, p->D });
    times_f(c, m->row_D, m->row_D);
    if (g->d.log_decay.data)
        gated_linear_store_dl(c, g);
    add_own_pairs(m->row_D, m->row_D, m->vg, m->Q, c->count, p->D);
    gated_linear_store(c, g->d.x.key, p->type, m->row_D, x->key_stride, x->D);
    gated_linear_store(c, g->d.x.value, p->type, m->row_M, x->value_stride, x->M);
}

static void gated_linear_backward(TensorType type, GatedLinearUpstream g, const GatedLinear *s)
{
    const GatedLinearPass p = gated_linear_pass(type, s, true);
    const bool needs_S = g.d.x.query.data || g.d.log_decay.data;
    GATED_LINEAR_ITEMS(item, &p)
    {
        const int64_t last =
            maximum(item.end - 1 - item.begin, 0) / GATED_LINEAR_CHUNK * GATED_LINEAR_CHUNK;
        gated_linear_load_state(&item, item.m.S_t, s->state, true);
        clear_pending(&item);
        for (int64_t i = item.begin; needs_S && i < item.end; i += GATED_LINEAR_CHUNK) {
            GatedLinearChunk c = gated_linear_chunk(&item, i);
            gated_linear_backward_chunk(&c, &g);
        }
        gated_linear_load_state(&item, item.m.S, g.dfinal_state, true);
        gated_linear_begin_dl(&item, item.m.S);
        memcpy(item.m.S_t, item.m.S, (size_t)(p.D * p.M) * sizeof *item.m.S);
        gated_linear_load_state(&item, item.m.S, g.dfinal_state, false);
        clear_pending(&item);
        for (int64_t i = item.begin + last; i >= item.begin && i < item.end;
             i -= GATED_LINEAR_CHUNK) {
            GatedLinearChunk c = gated_linear_chunk(&item, i);
            gated_linear_backward_chunk_reverse(&c, &g);
        }
        gated_linear_store_state(&item, g.d.state, item.m.S);
    }
    device_workspace_free(p.buffers);
}

static void gated_linear_backward_cpu(GatedLinearGradient d, const Real *dout,
                                      const Real *dfinal_state, const GatedLinear *s)
{
    gated_linear_backward(TENSOR_REAL, (GatedLinearUpstream){ d, dout, dfinal_state }, s);
}

static void gated_linear_backward_bf16(GatedLinearGradient d, const Real *dout,
                                       const Real *dfinal_state, const GatedLinear *s)
{
    gated_linear_backward(TENSOR_BF16, (GatedLinearUpstream){ d, dout, dfinal_state }, s);
}

const GatedLinearKernels gated_linear_cpu = { gated_linear_forward_cpu, gated_linear_backward_cpu };
const GatedLinearKernels gated_linear_cpu_bf16 = { gated_linear_forward_bf16,
                                                   gated_linear_backward_bf16 };
