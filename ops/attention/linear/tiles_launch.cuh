/* Planning and launching linear attention's kernels: see scan.cuh. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_TILES_LAUNCH_CUH
#define TAPEGRAD_OPS_ATTENTION_LINEAR_TILES_LAUNCH_CUH

#include "ops/attention/linear/mma.h"
#include "ops/attention/linear/chunk_plan.h"
#include "ops/attention/linear/scan_tiles.cuh"
#include "ops/attention/linear/scan_recurrent.cuh"

/* ------------------------------------------------------------------------------------- the plan */

typedef enum ScanKind {
    SCAN_TILES,
    SCAN_MMA,
    SCAN_WALK, /* recurrent */
} ScanKind;

/* The kernels for these arguments, and how the scans are cut, by the sizes and a block's shared
 * memory. great: the state exceeds shared memory. */
struct ScanPlan {
    ScanKind kind;
    int size, state_rows;
    int64_t state_size, y_tiles, w_tiles, column_tiles;
    int64_t segments, x_segments, states_a_head;
    bool added_up, quadratic, great;
};

/* Blocks of the tile kernels that the device runs at once. */
static inline int64_t resident_tile_blocks(void)
{
    int device, multiprocessors;
    cuda_check(cudaGetDevice(&device), "cudaGetDevice");
    cuda_check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
               "cudaDeviceGetAttribute");
    return (int64_t)multiprocessors * BLOCKS_AT_ONCE;
}

/* At most this number of segments, so that none is empty. */
static inline int64_t cut(int64_t chunks, int64_t segments)
{
    segments = min(segments, chunks);
    return tiles_for(chunks, tiles_for(chunks, segments));
}

/* FORM_BEST is recurrent for a few positions, as their chunk would be nearly empty. */
static inline AttentionForm form_of(const LinearScan *s, bool causal)
{
    const int64_t few = 4;
    if (s->form == FORM_BEST)
        return causal && s->x.N <= few ? FORM_RECURRENT : FORM_BEST;
    return s->form;
}

static inline ScanKind kind_of(TensorType type, const LinearScan *s, bool causal)
{
    const int64_t most_columns = s->x.D > s->x.M ? s->x.D : s->x.M;
    const AttentionForm form = form_of(s, causal);
    if (form == FORM_RECURRENT && walk_memory_size(most_columns + 1) <= MOST_WALK_MEMORY)
        return SCAN_WALK;
    return causal && form != FORM_QUADRATIC && causal_mma_fits(type, s) ? SCAN_MMA : SCAN_TILES;
}

/* Tile sizes. */
static inline void plan_tiles(ScanPlan *p, const AttentionInputs *a, bool causal, bool backward)
{
    p->size = causal ? (int)WIDEST : tile_size(a->D, a->M);
    const int64_t d_tiles = tiles_for(a->D, p->size), m_tiles = tiles_for(a->M, p->size);
    const int64_t most_tiles = d_tiles > m_tiles ? d_tiles : m_tiles;
    p->y_tiles = backward ? m_tiles : d_tiles;
    p->w_tiles = tiles_for(backward ? a->D : a->M, p->size);
    p->column_tiles = tiles_for(backward && a->D > a->M ? a->D : a->M, p->size);
    p->great = (backward ? most_tiles : d_tiles) * p->size > STATE_ROWS;
    p->state_rows = p->great ? p->size : (int)(backward ? most_tiles : d_tiles) * p->size;
    p->state_size = d_tiles * p->size * (m_tiles * p->size + 1);
}

/* The number of segments. ends: the sums of all segments are needed, for the final state. */
static inline void plan_scan_segments(ScanPlan *p, const LinearScan *s, bool causal, bool backward,
                                      bool ends)
{
    const AttentionInputs *a = &s->x;
    const AttentionForm form = form_of(s, causal);
    const int64_t heads = a->B * a->H, most_positions = a->N > a->keys ? a->N : a->keys;
    const int64_t chunks = tiles_for(most_positions, CHUNK);
    const int64_t scan_blocks = heads * p->column_tiles * (backward ? SCANS : 1);
    const int64_t sum_blocks = heads * p->y_tiles * p->w_tiles;
    const int64_t resident = resident_tile_blocks();
    int64_t segments = plan_segments(scan_blocks, chunks, resident);
    if (form == FORM_CHUNKED)
        segments = 1;
    if (form == FORM_CHUNK_PARALLEL && segments == 1)
        segments = 2;
    p->quadratic = form == FORM_QUADRATIC;
    p->x_segments = cut(chunks, causal && (p->great || p->quadratic) ? chunks : segments);
    p->segments = p->x_segments;
    if (!causal || p->quadratic)
        p->segments = plan_segments(sum_blocks, chunks, resident);
    p->states_a_head = causal && !ends ? p->segments - 1 : p->segments;
    if (p->quadratic && !ends)
        p->states_a_head = 0;
}

static inline ScanPlan plan_scans(TensorType type, const LinearScan *s, bool causal, bool backward,
                                  bool ends)
{
    const int64_t summing_up = 1 << 15; /* elements that every block may add up itself */
    ScanPlan p = {};
    p.kind = kind_of(type, s, causal);
    if (p.kind != SCAN_TILES)
        return p;
    plan_tiles(&p, &s->x, causal, backward);
    plan_scan_segments(&p, s, causal, backward, ends);
    p.added_up = p.great || p.states_a_head * p.state_size > summing_up;
    return p;
}

/* Rows of out, over all positions and heads. */
static inline int64_t rows_in_all(const AttentionInputs *a)
{
    return (a->offsets ? 1 : a->B) * a->N * a->H;
}

/* Elements of scratch memory: states, for backward those of the scans da and db, and dden. */
static inline int64_t scan_scratch(TensorType type, const LinearScan *s, bool causal, bool backward)
{
    const AttentionInputs *a = &s->x;
    const ScanPlan p = plan_scans(type, s, causal, backward, !backward || s->state);
    const int64_t states = a->B * a->H * p.states_a_head * p.state_size;
    return backward ? 2 * states + rows_in_all(a) : states + 1;
}

template <typename T>
static Scans<T> cut_scans(const ScanPlan &p, const AttentionInputs *a, Real *states)
{
    Scans<T> all = {};
    all.B = a->B;
    all.H = a->H;
    all.offsets = a->offsets;
    all.column_tiles = p.column_tiles;
    all.segments = p.segments;
    all.x_segments = p.x_segments;
    all.states_a_head = p.states_a_head;
    all.added_up = p.added_up;
    all.quadratic = p.quadratic;
    all.great = p.great;
    all.state_rows = p.state_rows;
    all.state_size = p.state_size;
    all.states = states;
    return all;
}

/* ------------------------------------------------------------------------------------ the scans */

template <typename T> static Rows<T> query_rows(const AttentionInputs *a)
{
    return rows_of<T>(a->query, a->query_stride, a->N, a->D);
}
template <typename T> static Rows<T> key_rows(const AttentionInputs *a)
{
    Rows<T> rows = rows_of<T>(a->key, a->key_stride, a->keys, a->D);
    rows.lengths = a->key_lengths;
    return rows;
}
template <typename T> static Rows<T> value_rows(const AttentionInputs *a)
{
    Rows<T> rows = rows_of<T>(a->value, a->value_stride, a->keys, a->M);
    rows.lengths = a->key_lengths;
    return rows;
}

template <typename T> static Rows<T> mapped(Rows<T> rows, const LinearScan *s)
{
    rows.map = s->features;
    return rows;
}

/* The scan for num, with den and the final state. */
template <typename T>
static Scans<T> forward_scan(Real *out, Real *den, Real *final_state, Real *scratch,
                             const ScanPlan &p, const LinearScan *s)
{
    const AttentionInputs *a = &s->x;
    Scans<T> all = cut_scans<T>(p, a, scratch);
    Scan<T> *num = &all.scan[all.count++];
    num->x = mapped(query_rows<T>(a), s);
    num->y = mapped(key_rows<T>(a), s);
    num->w = value_rows<T>(a);
    num->o = gradient_rows<T>({ out, false }, a->H * a->M, a->N, a->M);
    num->begin = s->state;
    num->end = { final_state, false };
    all.den = den;
    all.eps = s->eps;
    return all;
}

/* The scans for da, db and dv; ghat is dnum = dout / den. */
template <typename T, bool CAUSAL>
static void gradient_scans(Scan<T> *da, Scan<T> *db, Scan<T> *dv, const LinearScanGradient &d,
                           const Real *dout, const Real *dfinal_state, const Real *den,
                           const LinearScan *s)
{
    const AttentionInputs *a = &s->x;
    const Rows<T> q = query_rows<T>(a), k = key_rows<T>(a), v = value_rows<T>(a);
    Rows<T> ghat = rows_of<T>(dout, a->H * a->M, a->N, a->M);
    ghat.divisor = den;

    da->x = ghat;
    da->y = v;
    da->w = mapped(k, s);
    da->delta = DELTA_OF_X;
    da->o = gradient_rows<T>(d.x.query, a->query_stride, a->N, a->D);
    da->map = mapped(q, s);
    da->begin = s->state;
    da->transposed_ends = true;

    db->x = v;
    db->y = ghat;
    db->w = mapped(q, s);
    db->last_to_first = CAUSAL;
    db->delta = DELTA_OF_Y;
    db->o = gradient_rows<T>(d.x.key, a->key_stride, a->keys, a->D);
    db->o.lengths = a->key_lengths;
    db->map = mapped(k, s);
    db->begin = dfinal_state;
    db->end = d.state;
    db->transposed_ends = true;

    dv->x = mapped(k, s);
    dv->y = mapped(q, s);
    dv->w = ghat;
    dv->last_to_first = CAUSAL;
    dv->transposed_states = true;
    dv->o = gradient_rows<T>(d.x.value, a->value_stride, a->keys, a->M);
    dv->begin = dfinal_state;
}

/* Adds the scan if its result is needed. */
template <typename T> static void add_scan(Scans<T> *all, const Scan<T> &scan, bool wanted)
{
    if (wanted)
        all->scan[all->count++] = scan;
}

/* ------------------------------------------------------------------------------------ launching
 * TileKernels and WalkKernels (recurrent) have the same functions; deltas computes dden. */

template <int TILE_SIZE, bool CAUSAL> struct TileKernels {
    enum { SIZE = TILE_SIZE, WRITE_ENDS = false };

    template <typename T>
    static void deltas(Real *delta, const Real *dout, const Real *out, const Real *den,
                       int64_t rows, int64_t columns)
    {
        launch_row_deltas<T>(delta, dout, out, den, rows, columns);
    }

    template <typename T, bool FORWARD> static void sum(const Scans<T> &all, const ScanPlan &p)
    {
        const int64_t shared = CHUNK * (Tile<SIZE>::PITCH + SIZE + 1);
        const int64_t items = all.count * all.B * all.H * all.states_a_head * p.y_tiles * p.w_tiles;
        LAUNCH_TILES((sum_segments<T, SIZE, FORWARD>), items, shared, all, p.y_tiles, p.w_tiles,
                     items);
    }

    template <typename T, bool FORWARD> static void scan(const Scans<T> &all)
    {
        const int64_t items = all.count * all.B * all.H * all.x_segments * all.column_tiles;
        const int64_t shared = scan_memory<SIZE, CAUSAL, FORWARD>(all.state_rows);
        LAUNCH_TILES((scan_segments<T, SIZE, CAUSAL, FORWARD>), items, shared, all, items);
    }
};

struct WalkKernels {
    enum { SIZE = WALK_COLUMNS, WRITE_ENDS = true };

    template <typename T>
    static void deltas(Real *delta, const Real *dout, const Real *out, const Real *den,
                       int64_t rows, int64_t columns)
    {
        launch_row_deltas<T>(delta, dout, out, den, rows, columns);
    }

    template <typename T, bool FORWARD> static void sum(const Scans<T> &, const ScanPlan &) {}

    template <typename T, bool FORWARD> static void scan(const Scans<T> &all)
    {
        int64_t rows = 0, columns = 0;
        for (int i = 0; i < all.count; i++) {
            rows = max(rows, all.scan[i].y.columns + !FORWARD);
            columns = max(columns, all.scan[i].w.columns);
        }
        const int64_t column_tiles = tiles_for(columns, WALK_COLUMNS);
        const int64_t items = all.count * all.B * all.H * column_tiles;
        LAUNCH_TILES((walk_heads<T, FORWARD>), items, walk_memory_size(rows), all, column_tiles,
                     items);
    }
};

/* Computes the sums of the segments of all scans. */
template <typename Kernels, typename T, bool FORWARD>
static void find_states(const Scans<T> &all, const ScanPlan &p)
{
    const int64_t heads = all.count * all.B * all.H;
    if (heads == 0 || all.states_a_head == 0)
        return;
    Kernels::template sum<T, FORWARD>(all, p);
    if (all.added_up && all.states_a_head > 1)
        LAUNCH(add_up_segments<Real>, blocks_for(heads * all.state_size), THREADS, 0, all.states,
               heads, all.states_a_head, all.state_size);
}

/* The scan's final state, unless the kernels have written it */
template <typename Kernels, typename T, bool FORWARD>
static void find_end(const Scans<T> &all, const Scan<T> &scan)
{
    if constexpr (!Kernels::WRITE_ENDS) {
        Scans<T> one = all;
        one.scan[0] = scan;
        const int64_t numbers = all.B * all.H * (scan.y.columns + 1) * (scan.w.columns + 1);
        if (scan.end.data)
            LAUNCH((end_states<T, Kernels::SIZE, FORWARD>), blocks_for(numbers), THREADS, 0, one);
    }
}

template <typename Kernels, typename T>
static void forward_by(Real *out, Real *den, Real *final_state, Real *scratch, const ScanPlan &p,
                       const LinearScan *s)
{
    const Scans<T> all = forward_scan<T>(out, den, final_state, scratch, p, s);
    find_states<Kernels, T, true>(all, p);
    Kernels::template scan<T, true>(all);
    find_end<Kernels, T, true>(all, all.scan[0]);
}

/* The scans in one launch, or, where gradients share memory, one after another */
template <typename Kernels, typename T>
static void scan_gradients(const Scans<T> &all, const AttentionGradient &d)
{
    const Real *q = d.query.data, *k = d.key.data, *v = d.value.data;
    if (all.count > 0 && !(q && (q == k || q == v)) && !(k && k == v)) {
        Kernels::template scan<T, false>(all);
        return;
    }
    for (int i = 0; i < all.count; i++) {
        Scans<T> one = all;
        one.count = 1;
        one.scan[0] = all.scan[i];
        Kernels::template scan<T, false>(one);
    }
}

template <typename Kernels, typename T, bool CAUSAL>
static void backward_by(const LinearScanGradient &d, const Real *dout, const Real *dfinal_state,
                        const Real *out, const Real *den, Real *scratch, const ScanPlan &p,
                        const LinearScan *s)
{
    const AttentionInputs *a = &s->x;
    const int64_t rows = rows_in_all(a);
    Real *const delta = scratch;
    Kernels::template deltas<T>(delta, dout, out, den, rows, a->M);
    Scans<T> sums = cut_scans<T>(p, a, scratch + rows);
    sums.delta = delta;
    Scans<T> all = sums;
    Scan<T> da = {}, db = {}, dv = {};
    gradient_scans<T, CAUSAL>(&da, &db, &dv, d, dout, dfinal_state, den, s);
    db.states = dv.states = d.x.query.data ? a->B * a->H * p.states_a_head * p.state_size : 0;
    add_scan(&sums, da, d.x.query.data);
    add_scan(&sums, db, d.x.key.data || d.x.value.data || d.state.data);
    add_scan(&all, da, d.x.query.data);
    add_scan(&all, db, d.x.key.data || (Kernels::WRITE_ENDS && d.state.data));
    add_scan(&all, dv, d.x.value.data);
    find_states<Kernels, T, false>(sums, p);
    scan_gradients<Kernels>(all, d.x);
    find_end<Kernels, T, false>(all, db);
}

#endif
