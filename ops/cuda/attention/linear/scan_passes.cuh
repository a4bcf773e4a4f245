/* The passes of linear attention in tiles (scan_tiles.cuh), causal or not: the plan, the scans and
 * their launches. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_PASSES_CUH
#define TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_PASSES_CUH

#include "ops/cuda/attention/linear/chunk_plan.h"
#include "ops/cuda/attention/linear/log_decay_gradients.cuh"
#include "ops/cuda/attention/linear/scan_tiles.cuh"
#include "ops/cuda/attention/linear/state_sums.cuh"
#include "ops/cuda/shared/row_deltas.cuh"

/* ------------------------------------------------------------------------------------- the plan */

static inline void cut(Line *line, int64_t chunks, int64_t pieces)
{
    line->length = tiles_for(chunks, pieces) * CHUNK;
    line->pieces = (int32_t)tiles_for(chunks * CHUNK, line->length);
}

/* Rows of out, over all positions and heads. */
static inline int64_t rows_in_all(const AttentionInputs *x)
{
    return (x->offsets ? 1 : x->B) * x->N * x->H;
}

/* How the heads are cut into pieces, and o into tiles. */
template <typename T, int SIZE, bool CAUSAL>
static Scans<T> plan_scans(const LinearScan *s, bool backward)
{
    enum { STATE_ROWS = 128 }; /* most resident rows of T */
    const AttentionInputs *x = &s->x;
    const int64_t heads = x->B * x->H, widest = x->D > x->M ? x->D : x->M;
    const int64_t rows = tiles_for(backward ? widest : x->D, SIZE) * SIZE;
    Scans<T> all = {};
    all.D = x->D;
    all.M = x->M;
    all.W = linear_scan_columns(s);
    all.log_decay = s->log_decay;
    all.lengths = x->key_lengths;
    all.rows = rows_in_all(x);
    all.sums_count = backward ? 2 : 1;
    all.column_tiles = tiles_for(backward ? widest : x->M, SIZE);
    all.line = all.sums_line = line_of(x);
    all.eps = s->eps;
    if (CAUSAL)
        return all;
    const int64_t chunks = tiles_for(x->N > x->keys ? x->N : x->keys, CHUNK);
    const int64_t resident = device_attribute(cudaDevAttrMultiProcessorCount) * BLOCKS_AT_ONCE;
    const int64_t sum_blocks = heads * tiles_for(x->D, SIZE) * tiles_for(x->M, SIZE);
    const int64_t scan_blocks = heads * all.column_tiles * (backward ? 3 : 1);
    all.resident_rows = rows <= STATE_ROWS ? (int)rows : 0;
    cut(&all.sums_line, chunks, plan_segments(sum_blocks, chunks, resident));
    cut(&all.line, chunks, plan_segments(scan_blocks, chunks, resident));
    return all;
}

/* Elements of the states of S~, or of R~ */
template <typename T> static int64_t states_size(const Scans<T> &all)
{
    const int64_t decay = all.log_decay ? (int64_t)(sizeof(float2) / sizeof(Real)) : 0;
    return pieces_in_all(all.sums_line) * (all.D * all.W + decay) + decay; /* aligned */
}

/* ------------------------------------------------------------------------------------ the scans */

template <typename T> static Scan<T> scan(Augmented<T> x, Augmented<T> y, MappedRows<T> w)
{
    return { x, y, w, false, false, {}, {}, NULL };
}
template <typename T> static Scan<T> scan_reverse(Augmented<T> x, Augmented<T> y, MappedRows<T> w)
{
    return { x, y, w, true, false, {}, {}, NULL };
}

/* All scans of linear attention, and their states: S~ = sum of b v~^T and R~ = sum of a dnum~^T */
template <typename T> struct FourScans {
    Scan<T> num, da, db, dv;
    StateSums<T> S, R;
};

/* dnum = dout / den; forward, dout, den and dden are NULL. */
template <typename T>
static FourScans<T> scans_of(const LinearScan *s, const Real *dout, const Real *den,
                             const Real *dden)
{
    const AttentionInputs *x = &s->x;
    const FeatureMap phi = s->features, none = FEATURE_MAP_IDENTITY;
    const int32_t *lengths = x->key_lengths;
    const bool normalized = !s->unnormalized;
    const Augmented<T> a = { { rows_of<T>(x->query, x->query_stride, x->N, x->D), phi, NULL },
                             false,
                             NULL };
    const Augmented<T> b = { { rows_of<T>(x->key, x->key_stride, x->keys, x->D), phi, lengths },
                             false,
                             NULL };
    const Augmented<T> v = {
        { rows_of<T>(x->value, x->value_stride, x->keys, x->M), none, lengths }, normalized, NULL
    };
    Augmented<T> dnum = { { rows_of<T>(dout, x->H * x->M, x->N, x->M), none, NULL },
                          normalized,
                          dden };
    dnum.divisor = den;
    FourScans<T> all = {
        scan(a, b, v),            /* num~ */
        scan(dnum, v, b),         /* da */
        scan_reverse(v, dnum, a), /* db */
        scan_reverse(b, a, dnum), /* dv */
        { b, v, false, s->state, NULL, NULL, NULL },
        { a, dnum, true, NULL, NULL, NULL, NULL },
    };
    all.da.transposed = all.db.transposed = true; /* S^T and R^T */
    return all;
}

/* Adds the states of a sum, if any scan of all positions or of a second piece reads them. */
template <typename T, bool CAUSAL>
static void add_sums(Scans<T> *all, int i, const StateSums<T> &sums, bool read, Real *states)
{
    all->sums[i] = sums;
    if (read && (!CAUSAL || all->sums_line.pieces > 1 || sums.final || all->reads_all_states))
        all->sums[i].states = states;
    const int64_t elements = pieces_in_all(all->sums_line) * all->D * all->W;
    if (all->log_decay)
        all->sums[i].decays = (float2 *)(states + elements + elements % 2);
}

template <typename T, int SIZE, bool CAUSAL>
static void scan_forward(Real *out, Real *den, Real *final_state, const LinearScan *s)
{
    const AttentionInputs *x = &s->x;
    Scans<T> all = plan_scans<T, SIZE, CAUSAL>(s, false);
    Real *const states = device_workspace(states_size(all));
    FourScans<T> scans = scans_of<T>(s, NULL, NULL, NULL);
    scans.num.o = gradient_rows<T>({ out, false }, x->H * x->M, x->N, x->M);
    scans.S.final = final_state;
    add_sums<T, CAUSAL>(&all, 0, scans.S, true, states);
    all.scan[all.count++] = scans.num;
    all.den = den;
    launch_sums<T, SIZE>(all);
    launch_scans<T, SIZE, CAUSAL, true>(all);
    device_workspace_free(states);
}

/* Adds the scan if its result is needed. */
template <typename T>
static void add_scan(Scans<T> *all, Scan<T> scan, const GradientRows<T> &o,
                     const MappedRows<T> &map)
{
    scan.o = o;
    scan.map = map;
    if (o.data || scan.dots)
        all->scan[all->count++] = scan;
}

/* The scans in one launch, or, where gradients share memory, one after another */
template <typename T, int SIZE, bool CAUSAL>
static void launch_gradients(const Scans<T> &all, const AttentionGradient &d)
{
    const Real *q = d.query.data, *k = d.key.data, *v = d.value.data;
    const bool shared = (q && (q == k || q == v)) || (k && k == v);
    for (int i = 0; i < (shared ? all.count : all.count > 0); i++) {
        Scans<T> part = all;
        if (shared) {
            part.count = 1;
            part.scan[0] = all.scan[i];
        }
        launch_scans<T, SIZE, CAUSAL, false>(part);
    }
}

template <typename T, int SIZE, bool CAUSAL>
static void scan_backward(const LinearScanGradient &d, const Real *dout, const Real *dfinal_state,
                          const Real *out, const Real *den, const LinearScan *s)
{
    const AttentionInputs *x = &s->x;
    Scans<T> all = plan_scans<T, SIZE, CAUSAL>(s, true);
    const bool dlog_decay = d.log_decay.data;
    all.reads_all_states = dlog_decay && s->state;
    const int64_t dots = dlog_decay ? all.column_tiles * all.rows : 0; /* of a.da, and of b.db */
    Real *const dden = device_workspace(2 * states_size(all) + all.rows + 2 * dots);
    Real *const states = dden + all.rows, *const of_dots = states + 2 * states_size(all);
    if (!s->unnormalized)
        launch_row_deltas<T>(dden, dout, out, den, all.rows, x->M);
    FourScans<T> scans = scans_of<T>(s, dout, den, dden);
    scans.R.initial = dfinal_state;
    scans.R.final = d.state;
    if (dlog_decay) {
        scans.da.dots = of_dots;
        scans.db.dots = of_dots + dots;
    }
    add_sums<T, CAUSAL>(&all, 0, scans.S, d.x.query.data || dlog_decay, states);
    add_sums<T, CAUSAL>(&all, 1, scans.R, d.x.key.data || d.x.value.data || d.state || dlog_decay,
                        states + states_size(all));
    add_scan(&all, scans.da, gradient_rows<T>(d.x.query, x->query_stride, x->N, x->D), scans.num.x);
    add_scan(&all, scans.db, gradient_rows<T>(d.x.key, x->key_stride, x->keys, x->D), scans.num.y);
    add_scan(&all, scans.dv, gradient_rows<T>(d.x.value, x->value_stride, x->keys, x->M), {});
    launch_sums<T, SIZE>(all);
    launch_gradients<T, SIZE, CAUSAL>(all, d.x);
    if (dlog_decay)
        LAUNCH(log_decay_gradients<T>, (unsigned)pieces_in_all(all.line), CHUNK, 0, all,
               d.log_decay, of_dots, of_dots + dots, tiles_for(x->D, SIZE));
    device_workspace_free(dden);
}

#endif
