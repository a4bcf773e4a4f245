/* The delta rule with a decay per key dimension on the CPU, position by position. In chunks (WY
 * form, delta.c) the weight of a pair would be a sum over the key dimensions of products of the
 * e^(l_d), no matrix product; by position a decay costs one multiplication per element of a state.
 *
 * Let Z_i = diag(e^(l_i)) S_{i-1}, and R'_i = R_i - q_i g_i^T as in delta_rule.c. A position reads
 * before it writes, so that each pass loads and stores every element of a state once:
 *     forward:        u_i = beta_i (v_i - Z_i^T k_i)    out_i = Z_i^T q_i + (q_i.k_i) u_i
 *     from the last:  du_i = R'_i^T k_i + (q_i.k_i) g_i
 *                     R'_i u_i        R_i u_i = R'_i u_i + (g_i.u_i) q_i
 *     from the first: z_i = Z_i du_i, Z_i g_i           dq_i = Z_i g_i + (g_i.u_i) k_i
 * A column of S or R depends on itself alone, and once u and du are known, so does a row. So u,
 * out and du are computed by blocks of columns, products with u, du and g by blocks of rows. A
 * block is one or two vectors wide, and its part of the state stays in the L1 cache.
 *
 * Weak decays are not applied at each position, which would add up their rounding: row d of S is
 * pending_d times the stored row T_d, which is multiplied by factor_d: 1 until pending_d would be
 * below 1/2, then all that is pending. The sums of log decays are in double. Reads multiply k and q
 * by pending, writes divide them by it; in reverse too, where the decay of position i + 1 lies
 * between reads and writes. No exponent is positive, and a log decay of -infinity makes factor_d 0.
 *
 * dl_i is a cumulative sum from the first position of a segment, where it is the product of the
 * rows of S and R before: R is stored per segment, so that errors do not grow with the length. */
#include "ext/delta/cpu/positions.h"
#include "ops/cpu/shared/head_rows.h"

/* Positions packed at once, per segment, and the columns of a block */
enum { DELTA_PACKED = 32, DELTA_PART = 512, DELTA_BLOCK = 2 * LANES };

/* A head of a sequence, some of its positions, and the buffers of its thread. C: DELTA_PACKED */
typedef struct DeltaScan {
    const DeltaRule *rule;
    int type; /* of query, key, value, out and their gradients; all others are Real */
    bool backward, reverse;
    int64_t D, M;                    /* padded */
    int64_t length;                  /* of the longest sequence */
    int64_t b, h, begin, keys, end;  /* positions of all; those from keys on are masked */
    int64_t first, count;            /* the packed ones */
    Real *Q, *K, *V, *U, *G;         /* [C, D] or [C, M] */
    Real *out;                       /* [C, M]: out, or -dv */
    Real *factor, *pending;          /* [C, D] */
    Real *k_read, *k_write, *q_used; /* [C, D]: k pending, k / pending, q times or by pending */
    Real *z, *Zg, *dl;               /* [C, D] */
    Real *beta, *qk;                 /* [C] */
    Real *l;                         /* [D] */
    double *log_pending, *sum;       /* [D]; sum: dl of the next position */
    Real *columns, *rows;            /* T in blocks: of columns [D, DELTA_BLOCK], rows [M, ..] */
    Real *du, *Ru;                   /* [length, M], [length, D]: of the whole sequence; R' u */
    Real *segment_R;                 /* [segments, M, D]: R' before each segment, as rows */
} DeltaScan;

/* Sets the buffers in a thread's memory, or to NULL; returns their size. */
static int64_t allocate_delta_scan(DeltaScan *s, Real *memory)
{
    enum { C = DELTA_PACKED };
    int64_t used = 0;
    Real **const of_D[] = { &s->Q,       &s->K,      &s->factor, &s->pending, &s->k_read,
                            &s->k_write, &s->q_used, &s->z,      &s->Zg,      &s->dl };
    Real **const of_M[] = { &s->V, &s->U, &s->G, &s->out };
    for (size_t i = 0; i < sizeof of_D / sizeof *of_D; i++)
        *of_D[i] = allocate(memory, &used, C * s->D);
    for (size_t i = 0; i < sizeof of_M / sizeof *of_M; i++)
        *of_M[i] = allocate(memory, &used, C * s->M);
    s->beta = allocate(memory, &used, C);
    s->qk = allocate(memory, &used, C);
    s->l = allocate(memory, &used, s->D);
    s->log_pending = (double *)(void *)allocate(memory, &used, 2 * s->D);
    s->sum = (double *)(void *)allocate(memory, &used, 2 * s->D);
    s->columns = allocate(memory, &used, s->D * s->M);
    if (s->backward) {
        const int64_t segments = (s->length + DELTA_PART - 1) / DELTA_PART;
        s->rows = allocate(memory, &used, s->D * s->M);
        s->du = allocate(memory, &used, s->length * s->M);
        s->Ru = allocate(memory, &used, s->length * s->D);
        s->segment_R = allocate(memory, &used, segments * s->D * s->M);
    }
    return used;
}

/* All heads of all sequences: without buffers; size: of a thread's */
static DeltaScan delta_scans(TensorType type, const DeltaRule *rule, bool backward, int64_t *size)
{
    const AttentionInputs *x = &rule->x;
    DeltaScan s = { .rule = rule, .type = (int)type, .backward = backward };
    s.D = round_up(x->D, UNIT);
    s.M = round_up(x->M, UNIT);
    for (int64_t b = 0; b < x->B; b++)
        s.length = maximum(s.length, first_position(x, b + 1) - first_position(x, b));
    *size = allocate_delta_scan(&s, NULL);
    return s;
}

static DeltaScan delta_scan_of(const DeltaScan *all, int64_t index, Real *memory)
{
    const AttentionInputs *x = &all->rule->x;
    DeltaScan s = *all;
    s.b = index / x->H;
    s.h = index % x->H;
    s.begin = first_position(x, s.b);
    s.end = first_position(x, s.b + 1);
    s.keys = x->key_lengths ? s.begin + x->key_lengths[s.b] : s.end;
    allocate_delta_scan(&s, memory);
    return s;
}

static int threads_of_scans(const DeltaScan *s)
{
    const AttentionInputs *x = &s->rule->x;
    const double work = (s->backward ? 0.3 : 0.1) * (double)(s->D * s->M);
    return device_threads_for(first_position(x, x->B) * x->H, work);
}

/* DELTA_SCANS(s, all, size) statement: for all heads, divided among the threads. */
#define DELTA_SCANS(s, all, size)                                                                  \
    Real *const memory = device_workspace(device_threads() * (size));                              \
    PRAGMA(omp parallel for schedule(dynamic) num_threads(threads_of_scans(all)))                  \
    for (int64_t index = 0; index < (all)->rule->x.B * (all)->rule->x.H; index++)                  \
        for (DeltaScan s = delta_scan_of(all, index, memory + omp_get_thread_num() * (size));      \
             s.rule; s.rule = NULL)

/* --------------------------------------------------------------------------------------- states */

/* The index of an element of T [lines, columns] in blocks of columns */
static int64_t in_blocks(int64_t line, int64_t column, int64_t lines, int64_t columns)
{
    const int64_t block = column / DELTA_BLOCK * DELTA_BLOCK;
    return block * lines + line * minimum(DELTA_BLOCK, columns - block) + column - block;
}

/* Begins a scan: columns and rows, unless NULL, = a state [D, M]; NULL: 0 */
static void begin_delta_scan(DeltaScan *s, const Real *states, Real *columns, Real *rows,
                             bool reverse)
{
    const int64_t D = s->rule->x.D, M = s->rule->x.M, size = s->D * s->M;
    s->reverse = reverse;
    memset(s->log_pending, 0, (size_t)s->D * sizeof *s->log_pending);
    if (columns)
        memset(columns, 0, (size_t)size * sizeof *columns);
    if (rows)
        memset(rows, 0, (size_t)size * sizeof *rows);
    for (int64_t i = 0; states && i < D * M; i++) {
        const Real x = states[(s->b * s->rule->x.H + s->h) * D * M + i];
        if (columns)
            columns[in_blocks(i / M, i % M, s->D, s->M)] = x;
        if (rows)
            rows[in_blocks(i % M, i / M, s->M, s->D)] = x;
    }
}

/* The log decays of a position, or NULL: they are 0. */
static const Real *log_decays_at(const DeltaScan *s, int64_t position)
{
    const AttentionInputs *x = &s->rule->x;
    return position < s->keys ? s->rule->log_decay + (position * x->H + s->h) * x->D : NULL;
}

/* pending of row d after the decay l; l NULL: 0 */
static double pending_of_row(const DeltaScan *s, const Real *l, int64_t d)
{
    return exp(s->log_pending[d] + (l ? (double)l[d] : 0));
}

/* states = S, or dL/dS_0, which l of the first position multiplies */
static void store_scanned_state(const DeltaScan *s, Real *states, const Real *l)
{
    const int64_t D = s->rule->x.D, M = s->rule->x.M;
    for (int64_t d = 0; states && d < D; d++) {
        const double pending = pending_of_row(s, l, d);
        for (int64_t m = 0; m < M; m++)
            states[((s->b * s->rule->x.H + s->h) * D + d) * M + m] =
                (Real)(pending * (double)s->columns[in_blocks(d, m, s->D, s->M)]);
    }
}

/* ----------------------------------------------------------------------------- packed positions */

/* The packed positions, of which those before `end` have rows */
static HeadRows scanned_rows(const DeltaScan *s, int64_t end)
{
    const int64_t count = maximum(minimum(s->count, end - s->first), 0);
    return (HeadRows){ s->h, s->first, count, s->count };
}

static void load_rows_of(const DeltaScan *s, Real *to, int type, const Real *data, int64_t stride,
                         int64_t columns, int64_t end)
{
    pack_head_rows(to, scanned_rows(s, end), type, data, stride, columns);
}

static void store_rows_of(const DeltaScan *s, Gradient to, int type, const Real *rows,
                          int64_t stride, int64_t columns)
{
    unpack_head_rows(to, scanned_rows(s, s->end), type, rows, stride, columns);
}

/* factor and pending of position first + i, and what they make of its key and query */
WHOLE_VECTORS static void load_decays_of(const DeltaScan *s, int64_t i)
{
    const int64_t D = s->D;
    const Real *l = log_decays_at(s, s->first + i + s->reverse);
    const Real *restrict K = s->K + i * D, *restrict Q = s->Q + i * D;
    Real *restrict factor = s->factor + i * D, *restrict pending = s->pending + i * D;
    Real *restrict k_read = s->k_read + i * D, *restrict k_write = s->k_write + i * D;
    Real *restrict q_used = s->q_used + i * D, *restrict decay = s->l;
    double *restrict log_pending = s->log_pending;
    const bool reverse = s->reverse;
    memset(decay, 0, (size_t)D * sizeof *decay);
    if (l)
        memcpy(decay, l, (size_t)s->rule->x.D * sizeof *decay);
    for (int64_t d = 0; d < D; d++) {
        const double sum = log_pending[d] + (double)decay[d];
        const Real all = flush_factor(real_exp((Real)sum));
        const bool weak = all >= (Real)0.5;
        factor[d] = weak ? 1 : all;
        pending[d] = weak ? all : 1;
        log_pending[d] = weak ? sum : 0;
    }
    for (int64_t d = 0; d < D; d++) {
        const Real inverse = 1 / pending[d];
        k_read[d] = K[d] * pending[d];
        k_write[d] = K[d] * inverse;
        q_used[d] = Q[d] * (reverse ? inverse : pending[d]);
    }
}

static Real dot_rows(const Real *x, const Real *y, int64_t count)
{
    Real sum = 0;
    SUM(+, sum)
    for (int64_t i = 0; i < count; i++)
        sum += x[i] * y[i];
    return sum;
}

/* Packs the queries, keys and betas of some positions, and their decays in the scan's order. */
static void load_delta_positions(DeltaScan *s, int64_t first, int64_t end)
{
    const AttentionInputs *x = &s->rule->x;
    s->first = first;
    s->count = end - first;
    load_rows_of(s, s->Q, s->type, x->query, x->query_stride, x->D, s->end);
    load_rows_of(s, s->K, s->type, x->key, x->key_stride, x->D, s->keys);
    for (int64_t step = 0; step < s->count; step++) {
        const int64_t i = s->reverse ? s->count - 1 - step : step;
        load_decays_of(s, i);
        s->beta[i] = first + i < s->keys ? s->rule->beta[(first + i) * x->H + s->h] : 0;
        s->qk[i] = dot_rows(s->Q + i * s->D, s->K + i * s->D, s->D);
    }
}

/* ---------------------------------------------------------------------------------------- scans */

/* A block T [D, vectors] of columns, from column c on. Forward
 *     T <- factor_i (T + k_{i-1} u_{i-1}^T)        u_i = beta_i (v_i - T^T k_i)
 *                                                 out_i = T^T q_i + (q_i.k_i) u_i
 * in reverse
 *     T <- factor_i (T + q_{i+1} g_{i+1}^T - k_{i+1} dv_{i+1}^T)
 *     du_i = T^T k_i + (q_i.k_i) g_i               dv_i = beta_i du_i
 * with k and q times or by pending. */
ALWAYS_INLINE void delta_scan_columns(bool reverse, int vectors, const DeltaScan *s, Real *T,
                                      Real *du, int64_t c)
{
    const int64_t D = s->D, M = s->M, width = vectors * LANES;
    Vector w[2] = { 0 }, g[2] = { 0 }; /* u or -dv, and g, of the position before */
    int64_t before = 0;
    for (int64_t step = 0; step <= s->count; step++) {
        const bool last = step == s->count; /* which only adds the position before */
        const int64_t i = last ? before : reverse ? s->count - 1 - step : step;
        const Real *k_write = s->k_write + before * D, *q_write = s->q_used + before * D;
        const Real *factor = s->factor + i * D, *k_read = s->k_read + i * D;
        const Real *q_read = s->q_used + i * D;
        Vector by_k[2] = { 0 }, by_q[2] = { 0 };
        for (int64_t d = 0; d < D; d++)
            for (int v = 0; v < vectors; v++) {
                Real *const at = T + d * width + v * LANES;
                Vector t = multiply_add(broadcast(k_write[d]), w[v], vector(at));
                if (reverse)
                    t = multiply_add(broadcast(q_write[d]), g[v], t);
                if (!last)
                    t *= broadcast(factor[d]);
                *at_vector(at) = t;
                by_k[v] = multiply_add(broadcast(k_read[d]), t, by_k[v]);
                if (!reverse)
                    by_q[v] = multiply_add(broadcast(q_read[d]), t, by_q[v]);
            }
        if (last)
            return;
        for (int v = 0; v < vectors; v++) {
            const int64_t at = i * M + c + v * LANES;
            const Vector qk = broadcast(s->qk[i]), beta = broadcast(s->beta[i]);
            if (reverse) {
                g[v] = vector(s->G + at);
                const Vector du_i = multiply_add(qk, g[v], by_k[v]);
                w[v] = -beta * du_i;
                *at_vector(du + at) = du_i;
                *at_vector(s->out + at) = w[v];
            } else {
                w[v] = beta * (vector(s->V + at) - by_k[v]);
                *at_vector(s->U + at) = w[v];
                *at_vector(s->out + at) = multiply_add(qk, w[v], by_q[v]);
            }
        }
        before = i;
    }
}

/* A block T [M, vectors] of rows of a state, as columns, from row c on. From the first position
 *     T <- factor_i T      z_i = T du_i      Zg_i = T g_i      T <- T + k_i u_i^T
 * in reverse
 *     T <- factor_i T      R'u_i = T u_i     T <- T + q_i g_i^T - k_i dv_i^T */
ALWAYS_INLINE void delta_scan_rows(bool reverse, int vectors, const DeltaScan *s, Real *T, Real *du,
                                   Real *Ru, int64_t c)
{
    const int64_t D = s->D, M = s->M, width = vectors * LANES;
    for (int64_t step = 0; step < s->count; step++) {
        const int64_t i = reverse ? s->count - 1 - step : step, at = i * D + c;
        const Real *x = (reverse ? s->U : du) + i * M, *w = (reverse ? s->out : s->U) + i * M;
        const Real *g = s->G + i * M;
        Vector factor[2], k[2], q[2], by_x[2] = { 0 }, by_g[2] = { 0 };
        for (int v = 0; v < vectors; v++) {
            factor[v] = vector(s->factor + at + v * LANES);
            k[v] = vector(s->k_write + at + v * LANES);
            q[v] = vector(s->q_used + at + v * LANES);
        }
        for (int64_t m = 0; m < M; m++)
            for (int v = 0; v < vectors; v++) {
                Real *const row = T + m * width + v * LANES;
                Vector t = factor[v] * vector(row);
                by_x[v] = multiply_add(broadcast(x[m]), t, by_x[v]);
                if (!reverse)
                    by_g[v] = multiply_add(broadcast(g[m]), t, by_g[v]);
                t = multiply_add(broadcast(w[m]), k[v], t);
                if (reverse)
                    t = multiply_add(broadcast(g[m]), q[v], t);
                *at_vector(row) = t;
            }
        for (int v = 0; v < vectors; v++) {
            const Vector pending = vector(s->pending + at + v * LANES);
            *at_vector((reverse ? Ru : s->z) + at + v * LANES) = pending * by_x[v];
            if (!reverse)
                *at_vector(s->Zg + at + v * LANES) = pending * by_g[v];
        }
    }
}

/* The packed positions, in all blocks: the two functions above are inlined in these alone. */
WHOLE_VECTORS static void delta_scan_columns_forward(const DeltaScan *s)
{
    int64_t c = 0;
    for (; c + DELTA_BLOCK <= s->M; c += DELTA_BLOCK)
        delta_scan_columns(false, 2, s, s->columns + c * s->D, NULL, c);
    if (c < s->M)
        delta_scan_columns(false, 1, s, s->columns + c * s->D, NULL, c);
}

WHOLE_VECTORS static void delta_scan_columns_reverse(const DeltaScan *s, Real *du)
{
    int64_t c = 0;
    for (; c + DELTA_BLOCK <= s->M; c += DELTA_BLOCK)
        delta_scan_columns(true, 2, s, s->columns + c * s->D, du, c);
    if (c < s->M)
        delta_scan_columns(true, 1, s, s->columns + c * s->D, du, c);
}

WHOLE_VECTORS static void delta_scan_rows_forward(const DeltaScan *s, Real *du)
{
    int64_t c = 0;
    for (; c + DELTA_BLOCK <= s->D; c += DELTA_BLOCK)
        delta_scan_rows(false, 2, s, s->rows + c * s->M, du, NULL, c);
    if (c < s->D)
        delta_scan_rows(false, 1, s, s->rows + c * s->M, du, NULL, c);
}

WHOLE_VECTORS static void delta_scan_rows_reverse(const DeltaScan *s, Real *du, Real *Ru)
{
    int64_t c = 0;
    for (; c + DELTA_BLOCK <= s->D; c += DELTA_BLOCK)
        delta_scan_rows(true, 2, s, s->rows + c * s->M, du, Ru, c);
    if (c < s->D)
        delta_scan_rows(true, 1, s, s->rows + c * s->M, du, Ru, c);
}

/* -------------------------------------------------------------------------------------- forward */

void delta_positions_forward(TensorType type, Real *out, Real *u, Real *final_state,
                             const DeltaRule *rule)
{
    const AttentionInputs *x = &rule->x;
    int64_t size;
    const DeltaScan all = delta_scans(type, rule, false, &size);
    DELTA_SCANS(s, &all, size)
    {
        begin_delta_scan(&s, rule->state, s.columns, NULL, false);
        for (int64_t i = s.begin; i < s.end; i += DELTA_PACKED) {
            load_delta_positions(&s, i, minimum(i + DELTA_PACKED, s.end));
            load_rows_of(&s, s.V, s.type, x->value, x->value_stride, x->M, s.keys);
            delta_scan_columns_forward(&s);
            store_rows_of(&s, (Gradient){ out, false }, s.type, s.out, x->H * x->M, x->M);
            store_rows_of(&s, (Gradient){ u, false }, TENSOR_REAL, s.U, x->H * x->M, x->M);
        }
        store_scanned_state(&s, final_state, NULL);
    }
    device_workspace_free(memory);
}

/* ------------------------------------------------------------------------------------- backward */

/* R before a segment that the scan has just completed, from its first position on */
static Real *segment_R_of(const DeltaScan *s, int64_t first)
{
    const int64_t segment = (first - s->begin) / DELTA_PART;
    return (first - s->begin) % DELTA_PART ? NULL : s->segment_R + segment * s->D * s->M;
}

static void keep_segment_R(const DeltaScan *s)
{
    Real *to = segment_R_of(s, s->first);
    const Real *l = log_decays_at(s, s->first);
    for (int64_t d = 0; to && d < s->rule->x.D; d++) {
        const Real pending = (Real)pending_of_row(s, l, d);
        for (int64_t m = 0; m < s->M; m++) {
            const int64_t at = in_blocks(m, d, s->M, s->D);
            to[at] = pending * s->rows[at];
        }
    }
}

/* dl of a segment's first position: <S, R> by rows */
static void begin_segment(const DeltaScan *s, int64_t first)
{
    const Real *R = segment_R_of(s, first);
    for (int64_t d = 0; R && d < s->rule->x.D; d++) {
        double sum = 0;
        for (int64_t m = 0; m < s->M; m++) {
            const int64_t at = in_blocks(m, d, s->M, s->D);
            sum += (double)s->rows[at] * (double)R[at];
        }
        s->sum[d] = pending_of_row(s, NULL, d) * sum;
    }
}

/* dl_i, then dl_{i+1} = dl_i - q_i o Z_i g_i + beta_i k_i o z_i + k_i o R'_i u_i, o by elements */
static void sum_log_decays_of(const DeltaScan *s, const Real *Ru, int64_t i)
{
    const int64_t D = s->D;
    const Real *restrict Q = s->Q + i * D, *restrict K = s->K + i * D, *restrict R = Ru + i * D;
    const Real *restrict z = s->z + i * D, *restrict Zg = s->Zg + i * D, beta = s->beta[i];
    const Real *restrict factor = s->factor + i * D;
    double *restrict sum = s->sum;
    Real *restrict dl = s->dl + i * D;
    const bool masked = s->first + i >= s->keys;
    for (int64_t d = 0; d < D; d++) {
        const double now = factor[d] == 0 ? 0 : sum[d];
        dl[d] = masked ? 0 : (Real)now;
        sum[d] = now + (double)(K[d] * (R[d] + beta * z[d])) - (double)(Q[d] * Zg[d]);
    }
}

/* dq = Zg + (g.u) k, dk = R'u + (g.u) q - beta z, dv = beta du, dbeta = du.v - k.z; Zg becomes dq,
 * z dk and du dv. */
static void combine_positions(const DeltaScan *s, Gradient dbeta, Real *du, const Real *Ru)
{
    const int64_t D = s->D, M = s->M;
    for (int64_t i = 0; i < s->count; i++) {
        const Real *restrict Q = s->Q + i * D, *restrict K = s->K + i * D, beta = s->beta[i];
        const Real *restrict R = Ru + i * D;
        Real *restrict z = s->z + i * D, *restrict Zg = s->Zg + i * D;
        const Real gu = dot_rows(s->G + i * M, s->U + i * M, M);
        if (dbeta.data)
            gradient_add(dbeta, (s->first + i) * s->rule->x.H + s->h,
                         dot_rows(s->V + i * M, du + i * M, M) - dot_rows(K, z, D));
        for (int64_t d = 0; d < D; d++) {
            Zg[d] += gu * K[d];
            z[d] = R[d] + gu * Q[d] - beta * z[d];
        }
        for (int64_t m = 0; m < M; m++)
            du[i * M + m] *= beta;
    }
}

static void load_delta_upstream(const DeltaScan *s, const Real *dout, const Real *u)
{
    const AttentionInputs *x = &s->rule->x;
    load_rows_of(s, s->G, s->type, dout, x->H * x->M, x->M, s->end);
    load_rows_of(s, s->U, TENSOR_REAL, u, x->H * x->M, x->M, s->end);
}

void delta_positions_backward(TensorType type, DeltaRuleGradient d, const Real *dout,
                              const Real *dfinal_state, const Real *u, const DeltaRule *rule)
{
    const AttentionInputs *x = &rule->x;
    int64_t size;
    const DeltaScan all = delta_scans(type, rule, true, &size);
    DELTA_SCANS(s, &all, size)
    {
        begin_delta_scan(&s, dfinal_state, s.columns, s.rows, true);
        const int64_t chunks = (s.end - s.begin + DELTA_PACKED - 1) / DELTA_PACKED;
        for (int64_t chunk = chunks - 1; chunk >= 0; chunk--) {
            const int64_t at = chunk * DELTA_PACKED, i = s.begin + at;
            load_delta_positions(&s, i, minimum(i + DELTA_PACKED, s.end));
            load_delta_upstream(&s, dout, u);
            delta_scan_columns_reverse(&s, s.du + at * s.M);
            delta_scan_rows_reverse(&s, s.du + at * s.M, s.Ru + at * s.D);
            keep_segment_R(&s);
        }
        store_scanned_state(&s, d.state, log_decays_at(&s, s.begin));
        begin_delta_scan(&s, rule->state, NULL, s.rows, false);
        for (int64_t at = 0; at < s.end - s.begin; at += DELTA_PACKED) {
            Real *du = s.du + at * s.M, *Ru = s.Ru + at * s.D;
            const int64_t i = s.begin + at;
            begin_segment(&s, i);
            load_delta_positions(&s, i, minimum(i + DELTA_PACKED, s.end));
            load_delta_upstream(&s, dout, u);
            load_rows_of(&s, s.V, s.type, x->value, x->value_stride, x->M, s.keys);
            delta_scan_rows_forward(&s, du);
            for (int64_t k = 0; d.log_decay.data && k < s.count; k++)
                sum_log_decays_of(&s, Ru, k);
            combine_positions(&s, d.beta, du, Ru);
            store_rows_of(&s, d.x.query, s.type, s.Zg, x->query_stride, x->D);
            store_rows_of(&s, d.x.key, s.type, s.z, x->key_stride, x->D);
            store_rows_of(&s, d.x.value, s.type, du, x->value_stride, x->M);
            store_rows_of(&s, d.log_decay, TENSOR_REAL, s.dl, x->H * x->D, x->D);
        }
    }
    device_workspace_free(memory);
}
