/* Linear attention on the CPU, causal and not: the scans of causal_linear.c as four calls of one
 * function,
 *
 *     scan        (a,     b,     v~,   S~,   num~)        position 1 to N
 *     scan        (dnum~, v~,    b,    S~^T, da)
 *     scan_reverse(v~,    dnum~, a,    R~^T, db)          position N to 1
 *     scan_reverse(b,     a,     dnum, R,    dv)
 *
 * inside plain loops over the chunks of an item of work (plan.h): each packs a chunk's rows (in
 * reverse order for scan_reverse), scans them (scan_chunk of scan.h), and unpacks the results.
 * Loading and storing rows prefetches those of the next chunk.
 *
 * A sequence is cut into segments where that helps. The prefix states at the segment boundaries are
 * computed first, from keys and values alone. Then
 *   - several threads process several segments of a sequence: the chunk-parallel form;
 *   - or, in the backward pass, one thread processes the segments from the last to the first, each
 *     with a scan for da and a scan_reverse for db and dv, and saves dden of one segment only. */
#include "ops/cpu/attention/linear/feature_map.h"
#include "ops/cpu/attention/linear/plan.h"
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"

/* ----------------------------------------------------------------------------- loads and stores */

/* Offset of the chunk's first row in a tensor with `columns` elements per head; start: the
 * sequence's first row */
ALWAYS_INLINE int64_t chunk_at(const Work *w, int64_t start, int64_t stride, int64_t columns)
{
    return (start + w->position) * stride + w->head * columns;
}

ALWAYS_INLINE Rows chunk_rows(const Work *w, const Real *data, int64_t start, int64_t stride,
                              int64_t columns)
{
    const int type = w->pass->type;
    return (Rows){ type, elements_at(type, data, chunk_at(w, start, stride, columns)),
                   w->step * stride, w->scan.count, columns };
}

/* Adds the head's rows of the next chunk to those that the next scan prefetches. */
ALWAYS_INLINE void prefetch_next_chunk(Work *w, Rows rows)
{
    Prefetch *next = &w->scan.next;
    const int64_t element = (int64_t)element_bytes(rows.type), row = rows.stride * element;
    const char *first = (const char *)rows.data + rows.count * row;
    for (int64_t i = 0; i < rows.columns * element && next->count < MOST_LINES; i += LINE_BYTES) {
        next->first[next->count] = first + i;
        next->step[next->count++] = row;
    }
}

ALWAYS_INLINE void load_rows(Work *w, Matrix to, Rows rows)
{
    prefetch_next_chunk(w, rows);
    pack(to.data, &rows, to.columns, 1, 0);
}

/* a = phi(q) */
static void load_query_features(Work *w)
{
    const AttentionInputs *x = w->pass->x;
    const Rows rows = chunk_rows(w, x->query, w->query_row, x->query_stride, x->D);
    pack_mapped(w->pass->options->features, w->a.data, &rows, w->a.columns);
}

static void zero_masked_keys(const Work *w, Matrix rows)
{
    const size_t row = (size_t)rows.columns * sizeof(Real);
    memset(rows.data, 0, (size_t)w->first_key * row);
    memset(rows.data + w->end_key * rows.columns, 0, (size_t)(w->scan.count - w->end_key) * row);
}

/* b = phi(k), v~ = [v, 1]; 0 for masked keys, which may hold NaN */
static void load_key_features(Work *w)
{
    const AttentionInputs *x = w->pass->x;
    Rows key = chunk_rows(w, x->key, w->key_row, x->key_stride, x->D);
    Rows value = chunk_rows(w, x->value, w->key_row, x->value_stride, x->M);
    prefetch_next_chunk(w, value);
    key.data = elements_at(key.type, key.data, w->first_key * key.stride);
    value.data = elements_at(value.type, value.data, w->first_key * value.stride);
    key.count = value.count = w->end_key - w->first_key;
    pack_mapped(w->pass->options->features, w->b.data + w->first_key * w->b.columns, &key,
                w->b.columns);
    pack(w->v.data + w->first_key * w->v.columns, &value, w->v.columns, 1, 0);
    zero_masked_keys(w, w->b);
    zero_masked_keys(w, w->v);
}

/* The chunk's rows of a tensor like out. */
ALWAYS_INLINE Rows out_rows(const Work *w, const Real *data)
{
    const AttentionInputs *x = w->pass->x;
    return chunk_rows(w, data, w->query_row, x->H * x->M, x->M);
}

/* row i <- factor row i */
ALWAYS_INLINE void scale_row(Matrix rows, int64_t i, Real factor)
{
    Real *row = rows.data + i * rows.columns;
    for (int64_t c = 0; c < rows.columns; c += LANES)
        *at_vector(row + c) *= factor;
}

/* dnum_i = g_i / den_i */
static void load_dnum(Work *w)
{
    const Pass *p = w->pass;
    load_rows(w, w->dnum, out_rows(w, p->dout));
    const int64_t H = p->x->H, step = w->step * H, count = w->scan.count;
    const Real *den = p->den + chunk_at(w, w->query_row, H, 1);
    const Matrix dnum = w->dnum;
    for (int64_t i = 0; i < count; i++)
        scale_row(dnum, i, 1 / den[i * step]);
}

/* dden_i = -dnum_i.out_i */
static void find_dden(Work *w)
{
    const int64_t M = w->pass->M, count = w->scan.count;
    const Matrix dnum = w->dnum, out = w->out;
    load_rows(w, out, out_rows(w, w->pass->out));
    for (int64_t i = 0; i < count; i++)
        dnum.last[i] = -dot(dnum.data + i * M, out.data + i * M, M);
}

/* Saves dden of a chunk in the order of positions; load_dden reads it in reverse. */
static Real *saved_dden(const Work *w)
{
    return w->dden + (w->head - w->first_head) * w->pass->segment + w->position - w->begin;
}

static void save_dden(const Work *w)
{
    memcpy(saved_dden(w), w->dnum.last, (size_t)w->scan.count * sizeof(Real));
}

static void load_dden(Work *w)
{
    const Real *dden = saved_dden(w);
    for (int64_t i = 0; i < w->scan.count; i++)
        w->dnum.last[i] = dden[-i];
}

/* to <- the chunk's rows; to.data NULL: nothing */
ALWAYS_INLINE void store_rows(Work *w, Gradient to, Matrix from, int64_t start, int64_t stride,
                              int64_t columns)
{
    if (!to.data)
        return;
    const Rows rows = chunk_rows(w, to.data, start, stride, columns);
    prefetch_next_chunk(w, rows);
    to.data = elements_at(rows.type, to.data, chunk_at(w, start, stride, columns));
    unpack(&(GradientRows){ rows.type, to, rows.stride, rows.count, columns }, from.data,
           from.columns, 1, 0);
}

/* den_i = num~_i[M] + eps     out_i = num_i / den_i */
static void store_num_over_den(Work *w)
{
    const Pass *p = w->pass;
    const int64_t H = p->x->H, count = w->scan.count;
    const Matrix num = w->num;
    const Real eps = p->options->eps;
    Real *new_den = p->new_den + chunk_at(w, w->query_row, H, 1);
    for (int64_t i = 0; i < count; i++) {
        const Real den = num.last[i] + eps;
        new_den[i * H] = den;
        scale_row(num, i, 1 / den);
    }
    store_rows(w, (Gradient){ p->new_out, false }, w->num, w->query_row, H * p->x->M, p->x->M);
}

/* dq_i <- da_i phi'(q_i) */
static void store_dquery(Work *w)
{
    const Pass *p = w->pass;
    feature_map_backward(p->options->features, w->da.data, w->a.data, w->scan.count * p->D);
    store_rows(w, p->d.x.query, w->da, w->query_row, p->x->query_stride, p->x->D);
}

/* dk_j <- db_j phi'(k_j), and 0 for masked keys */
static void store_dkey(Work *w)
{
    const Pass *p = w->pass;
    feature_map_backward(p->options->features, w->db.data, w->b.data, w->scan.count * p->D);
    zero_masked_keys(w, w->db);
    store_rows(w, p->d.x.key, w->db, w->key_row, p->x->key_stride, p->x->D);
}

static void store_dvalue(Work *w)
{
    zero_masked_keys(w, w->dv);
    store_rows(w, w->pass->d.x.value, w->dv, w->key_row, w->pass->x->value_stride, w->pass->x->M);
}

/* --------------------------------------------------------------------- prefix and suffix states */

/* S~ before a segment; in the backward pass transposed. */
static void load_prefix_states(Work *w, int64_t segment)
{
    const Pass *p = w->pass;
    if (segment > 0)
        copy_states(w, w->states[0], boundary(w, p->prefix, segment));
    else if (p->options->state)
        unpack_states(w, w->states[0], p->options->state, p->backward);
    else
        zero_states(w, w->states[0]);
}

static void transpose_R(Work *w)
{
    const Pass *p = w->pass;
    for (int64_t head = w->first_head; head < w->end_head; head++) {
        select_head(w, head);
        transpose(w->R_t.data, w->R.data, p->M, p->D, p->M, p->D);
    }
}

/* R~ after a segment, and R^T. */
static void load_suffix_states(Work *w, int64_t segment)
{
    const Pass *p = w->pass;
    if (segment + 1 < w->segments)
        copy_states(w, w->states[1], boundary(w, p->suffix, segment));
    else if (p->dfinal_state)
        unpack_states(w, w->states[1], p->dfinal_state, false);
    else
        zero_states(w, w->states[1]);
    transpose_R(w);
}

/* The prefix states of the segments after each of the item's: summed from the initial state or, if
 * the item does not start with the first segment, from 0. Then add_up_states completes them. */
static void find_prefix_states(Work *w)
{
    const Pass *p = w->pass;
    if (w->first_segment == 0)
        load_prefix_states(w, 0);
    else
        zero_states(w, w->states[0]);
    for (int64_t s = w->first_segment; s < w->end_segment && s + 1 < w->segments; s++) {
        first_chunk(w, segment_start(w, s), segment_start(w, s + 1), 1, true);
        for (; w->scan.count; next_chunk(w)) {
            load_key_features(w);
            if (p->backward)
                state_add(&w->scan, w->v, w->b, w->S_t);
            else
                state_add(&w->scan, w->b, w->v, w->S);
        }
        copy_states(w, boundary(w, p->prefix, s + 1), w->states[0]);
    }
}

/* The suffix state of the segment before the item's, summed from dL/dS~_N or, if the item's segment
 * is not the last, from 0. Then add_up_states completes it. */
static void find_suffix_states(Work *w)
{
    const int64_t s = w->first_segment;
    if (s == 0)
        return;
    if (s + 1 == w->segments)
        load_suffix_states(w, s);
    else
        zero_states(w, w->states[1]);
    first_chunk(w, segment_start(w, s), segment_start(w, s + 1), -1, true);
    for (; w->scan.count; next_chunk(w)) {
        load_query_features(w);
        load_dnum(w);
        find_dden(w);
        state_add(&w->scan, w->a, w->dnum, w->R);
    }
    copy_states(w, boundary(w, w->pass->suffix, s - 1), w->states[1]);
}

/* The sums over single segments become prefix states and suffix states. */
static void add_up_states(Work *w)
{
    const Pass *p = w->pass;
    if (w->first_segment > 0)
        return;
    for (int64_t s = 2; s < w->segments; s++)
        add_states(w, boundary(w, p->prefix, s), boundary(w, p->prefix, s - 1));
    for (int64_t s = w->segments - 3; p->backward && s >= 0; s--)
        add_states(w, boundary(w, p->suffix, s), boundary(w, p->suffix, s + 1));
}

static void find_boundary_states(const Pass *p)
{
    if (p->segments < 2)
        return;
    for_each_item(p, find_prefix_states);
    if (p->parallel && p->backward)
        for_each_item(p, find_suffix_states);
    if (p->parallel)
        for_each_item(p, add_up_states);
}

/* --------------------------------------------------------------------------------------- causal */

static void forward_item(Work *w)
{
    Real *final_state = w->end_segment == w->segments ? w->pass->final_state : NULL;
    load_prefix_states(w, w->first_segment);
    first_chunk(w, segment_start(w, w->first_segment), segment_start(w, w->end_segment), 1,
                final_state);
    for (; w->scan.count; next_chunk(w)) {
        load_query_features(w);
        load_key_features(w);
        scan_chunk(&w->scan, w->a, w->b, w->v, w->S, w->num);
        store_num_over_den(w);
    }
    if (final_state)
        contribute_states(w, (Gradient){ final_state, false }, w->states[0]);
}

/* dq, in the order of positions, and dden. */
static void backward_queries(Work *w, int64_t segment)
{
    const bool dquery = w->pass->d.x.query.data;
    load_prefix_states(w, segment);
    first_chunk(w, segment_start(w, segment), segment_start(w, segment + 1), 1, false);
    for (; w->scan.count; next_chunk(w)) {
        load_dnum(w);
        find_dden(w);
        save_dden(w);
        if (!dquery)
            continue;
        load_query_features(w);
        load_key_features(w);
        scan_chunk(&w->scan, w->dnum, w->v, w->b, w->S_t, w->da);
        store_dquery(w);
    }
}

/* dk and dv: the rows are loaded in reverse order, so that scan_chunk is scan_reverse. */
static void scan_backward_keys(Work *w, int64_t segment)
{
    const LinearScanGradient *d = &w->pass->d;
    const bool state_after = segment > w->first_segment || d->state.data;
    const bool dkey = d->x.key.data || d->state.data, dvalue = d->x.value.data || d->state.data;
    first_chunk(w, segment_start(w, segment), segment_start(w, segment + 1), -1, state_after);
    for (; (dkey || dvalue) && w->scan.count; next_chunk(w)) {
        load_query_features(w);
        load_key_features(w);
        load_dnum(w);
        load_dden(w);
        const Matrix dnum = { .data = w->dnum.data, .columns = w->dnum.columns };
        if (dkey) {
            scan_chunk(&w->scan, w->v, w->dnum, w->a, w->R_t, w->db);
            store_dkey(w);
        }
        if (dvalue) {
            scan_chunk(&w->scan, w->b, w->a, dnum, w->R, w->dv);
            store_dvalue(w);
        }
    }
}

static void backward_item(Work *w)
{
    const Gradient dstate = w->pass->d.state;
    load_suffix_states(w, w->end_segment - 1);
    for (int64_t s = w->end_segment - 1; s >= w->first_segment; s--) {
        backward_queries(w, s);
        scan_backward_keys(w, s);
    }
    if (dstate.data && w->first_segment == 0)
        contribute_states(w, dstate, w->states[1]);
}

static void causal_forward(TensorType type, Real *out, Real *den, Real *final_state,
                           const LinearScan *s)
{
    Pass p = plan_pass(type, s, true, false);
    p.new_out = out;
    p.new_den = den;
    p.final_state = final_state;
    Real *scratch = assign_scratch(&p);
    find_boundary_states(&p);
    for_each_item(&p, forward_item);
    device_workspace_free(scratch);
}

void causal_linear_attention_forward_cpu(Real *out, Real *den, Real *final_state,
                                         const LinearScan *s)
{
    causal_forward(TENSOR_REAL, out, den, final_state, s);
}

void causal_linear_attention_forward_bf16(Real *out, Real *den, Real *final_state,
                                          const LinearScan *s)
{
    causal_forward(TENSOR_BF16, out, den, final_state, s);
}

static void causal_backward(TensorType type, LinearScanGradient d, const Real *dout,
                            const Real *dfinal_state, const Real *out, const Real *den,
                            const LinearScan *s)
{
    Pass p = plan_pass(type, s, true, true);
    p.d = d;
    p.dout = dout;
    p.dfinal_state = dfinal_state;
    p.out = out;
    p.den = den;
    Real *scratch = assign_scratch(&p);
    find_boundary_states(&p);
    for_each_item(&p, backward_item);
    device_workspace_free(scratch);
}

void causal_linear_attention_backward_cpu(LinearScanGradient d, const Real *dout,
                                          const Real *dfinal_state, const Real *out,
                                          const Real *den, const LinearScan *s)
{
    causal_backward(TENSOR_REAL, d, dout, dfinal_state, out, den, s);
}

void causal_linear_attention_backward_bf16(LinearScanGradient d, const Real *dout,
                                           const Real *dfinal_state, const Real *out,
                                           const Real *den, const LinearScan *s)
{
    causal_backward(TENSOR_BF16, d, dout, dfinal_state, out, den, s);
}

/* ----------------------------------------------------------------------------------- not causal
 * Every position reads the totals S~ = sum_j b_j v~_j^T and R~ = sum_i a_i dnum~_i^T. Each is a sum
 * over blocks of positions, so that rounding errors stay those of short sums. */
enum { POSITION_BLOCK = 4096 };

/* Before each chunk: where a block begins, adds the sums so far to those of earlier blocks, which
 * are in the memory of R^T. */
static void begin_block(Work *w, Real *sums)
{
    if (w->head > w->first_head || w->position == 0 ||
        w->position % POSITION_BLOCK >= w->pass->rows)
        return;
    add_states(w, w->states[2], sums);
    zero_states(w, sums);
}

static void forward_item_noncausal(Work *w)
{
    load_prefix_states(w, 0);
    zero_states(w, w->states[2]);
    for (first_chunk(w, 0, w->keys, 1, true); w->scan.count; next_chunk(w)) {
        begin_block(w, w->states[0]);
        load_key_features(w);
        state_add(&w->scan, w->b, w->v, w->S);
    }
    add_states(w, w->states[0], w->states[2]);
    for (first_chunk(w, 0, w->length, 1, true); w->scan.count; next_chunk(w)) {
        load_query_features(w);
        state_read(&w->scan, w->a, w->S, w->num);
        store_num_over_den(w);
    }
}

static void backward_item_noncausal(Work *w)
{
    load_prefix_states(w, 0);
    zero_states(w, w->states[2]);
    for (first_chunk(w, 0, w->keys, 1, true); w->scan.count; next_chunk(w)) {
        begin_block(w, w->states[0]);
        load_key_features(w);
        state_add(&w->scan, w->v, w->b, w->S_t);
    }
    add_states(w, w->states[0], w->states[2]);
    load_suffix_states(w, 0);
    zero_states(w, w->states[2]);
    for (first_chunk(w, 0, w->length, 1, true); w->scan.count; next_chunk(w)) {
        begin_block(w, w->states[1]);
        load_query_features(w);
        load_dnum(w);
        find_dden(w);
        state_add(&w->scan, w->a, w->dnum, w->R);
        state_read(&w->scan, w->dnum, w->S_t, w->da);
        store_dquery(w);
    }
    add_states(w, w->states[1], w->states[2]);
    transpose_R(w);
    for (first_chunk(w, 0, w->pass->x->keys, 1, true); w->scan.count; next_chunk(w)) {
        load_key_features(w);
        state_read(&w->scan, w->v, w->R_t, w->db);
        store_dkey(w);
        state_read(&w->scan, w->b, w->R, w->dv);
        store_dvalue(w);
    }
}

static void noncausal_forward(TensorType type, Real *out, Real *den, const LinearScan *s)
{
    Pass p = plan_pass(type, s, false, false);
    p.new_out = out;
    p.new_den = den;
    Real *scratch = assign_scratch(&p);
    for_each_item(&p, forward_item_noncausal);
    device_workspace_free(scratch);
}

void linear_attention_forward_cpu(Real *out, Real *den, const LinearScan *s)
{
    noncausal_forward(TENSOR_REAL, out, den, s);
}

void linear_attention_forward_bf16(Real *out, Real *den, const LinearScan *s)
{
    noncausal_forward(TENSOR_BF16, out, den, s);
}

static void noncausal_backward(TensorType type, AttentionGradient d, const Real *dout,
                               const Real *out, const Real *den, const LinearScan *s)
{
    Pass p = plan_pass(type, s, false, true);
    p.d.x = d;
    p.dout = dout;
    p.out = out;
    p.den = den;
    Real *scratch = assign_scratch(&p);
    for_each_item(&p, backward_item_noncausal);
    device_workspace_free(scratch);
}

void linear_attention_backward_cpu(AttentionGradient d, const Real *dout, const Real *out,
                                   const Real *den, const LinearScan *s)
{
    noncausal_backward(TENSOR_REAL, d, dout, out, den, s);
}

void linear_attention_backward_bf16(AttentionGradient d, const Real *dout, const Real *out,
                                    const Real *den, const LinearScan *s)
{
    noncausal_backward(TENSOR_BF16, d, dout, out, den, s);
}
