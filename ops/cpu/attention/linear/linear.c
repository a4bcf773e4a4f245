/* Linear attention on the CPU, causal and not: the scans of causal_linear.c as four calls of one
 * function,
 *
 *     scan        (a,     b,     v~,   S~,   num~)        position 1 to N
 *     scan        (dnum~, v~,    b,    S~^T, da)
 *     scan_reverse(v~,    dnum~, a,    R~^T, db)          position N to 1
 *     scan_reverse(b,     a,     dnum, R,    dv)
 *
 * inside plain loops over the chunks of an item of work (items.h): each packs a chunk's rows in the
 * order of the scan (chunk_load.h), scans them (scan.h), and unpacks the results (chunk_store.h). A
 * scan also prefetches rows of the next chunk.
 *
 * A sequence is divided into segments where that helps. The prefix states at the segment boundaries
 * are computed first, from keys and values alone. Then
 *   - several threads process several segments of a sequence: the chunk-parallel form;
 *   - or, in the backward pass, one thread processes the segments from the last to the first, each
 *     with a scan for da and a scan_reverse for db and dv, and saves dden of one segment only.
 * With a decay one scan for da passes all segments first, and stores the states at their
 * boundaries, from which the sums for its gradient start. */
#include "ops/cpu/attention/linear/chunk_load.h"
#include "ops/cpu/attention/linear/chunk_store.h"
#include "ops/cpu/attention/linear/decay_gradient.h"
#include "ops/kernels.h"

/* The operands of a backward pass besides the inputs. */
typedef struct ScanBackward {
    LinearScanGradient d;
    const Real *dout, *dfinal_state, *out, *den;
} ScanBackward;

static ScanRange segment_range(const ScanItem *item, int64_t segment, Direction direction)
{
    const int64_t size = item->plan->segment, begin = segment * size;
    return (ScanRange){ minimum(begin, item->length), minimum(begin + size, item->length),
                        direction, false, true };
}

/* The states of a chunk's head. */
static Matrix S_of(const HeadChunk *c)
{
    return head_state(c->item, c->item->buffers.S, c->head, c->item->plan->M);
}
static Matrix S_transposed_of(const HeadChunk *c)
{
    return head_state(c->item, c->item->buffers.S, c->head, c->item->plan->D);
}
static Matrix R_of(const HeadChunk *c)
{
    return head_state(c->item, c->item->buffers.R, c->head, c->item->plan->M);
}
static Matrix R_transposed_of(const HeadChunk *c)
{
    Matrix R_t = head_state(c->item, c->item->buffers.R_t, c->head, c->item->plan->D);
    R_t.last = R_of(c).last;
    return R_t;
}

/* Sums without causal mask are sums over blocks of positions, so that rounding errors stay those of
 * short sums. Before each chunk: where a block begins, adds the sums so far to those of earlier
 * blocks. */
enum { POSITION_BLOCK = 4096 };
static void begin_block(const HeadChunk *c, Real *sums, Real *earlier)
{
    const ScanItem *item = c->item;
    if (c->head > item->first_head || c->position == 0 ||
        c->position % POSITION_BLOCK >= item->plan->rows)
        return;
    add_states(item, earlier, sums);
    zero_states(item, sums);
}

/* S~ <- S~ + sum_j b_j v~_j^T over a range; in the backward pass transposed. */
static void add_keys_to_S(const ScanItem *item, ScanRange range)
{
    const ScanPlan *p = item->plan;
    Prefetch next = { .count = 0 };
    for (HeadChunk c = first_chunk(item, range); c.scan.count; next_chunk(&c)) {
        if (!p->causal)
            begin_block(&c, item->buffers.S, item->buffers.earlier);
        const Matrix b = load_b(&c), v = load_v(&c);
        prefetch_after(&next, value_rows(&c, p->x->value));
        fade_to_end(&c, b, p->backward ? S_transposed_of(&c) : S_of(&c), p->backward ? p->M : p->D);
        if (p->backward)
            state_add(&c.scan, &next, v, b, S_transposed_of(&c));
        else
            state_add(&c.scan, &next, b, v, S_of(&c));
    }
}

/* --------------------------------------------------------------------- prefix and suffix states */

/* The prefix states of the segments after each of the item's: summed from the initial state or, if
 * the item does not start with the first segment, from 0. Then prefix_sum_states completes them. */
static void compute_prefix_states(const ScanItem *item)
{
    const ScanPlan *p = item->plan;
    Real *S = item->buffers.S;
    unpack_states(item, S, item->first_segment == 0 ? p->options->state : NULL, p->backward);
    for (int64_t s = item->first_segment; s < item->end_segment && s + 1 < item->segments; s++) {
        add_keys_to_S(item, segment_range(item, s, SCAN));
        copy_states(item, boundary(item, p->prefix, s + 1), S);
    }
}

/* The suffix state of the segment before the item's, summed from F~ or, if the item's segment
 * is not the last, from 0. Then prefix_sum_states completes it. */
static void compute_suffix_states(const ScanItem *item, const ScanBackward *g)
{
    const int64_t s = item->first_segment;
    Real *R = item->buffers.R;
    Prefetch next = { .count = 0 };
    if (s == 0)
        return;
    unpack_states(item, R, s + 1 == item->segments ? g->dfinal_state : NULL, false);
    const ScanRange range = segment_range(item, s, SCAN_REVERSE);
    for (HeadChunk c = first_chunk(item, range); c.scan.count; next_chunk(&c)) {
        const Matrix a = load_a(&c), dnum = load_dnum(&c, g->dout, g->den, NULL);
        compute_dden(&c, dnum, g->out);
        prefetch_after(&next, out_rows(&c, g->dout));
        prefetch_after(&next, out_rows(&c, g->out));
        fade_to_end(&c, dnum, R_of(&c), item->plan->D);
        state_add(&c.scan, &next, a, dnum, R_of(&c));
    }
    copy_states(item, boundary(item, item->plan->suffix, s - 1), R);
}

/* The sums over single segments become prefix states and suffix states. */
static void prefix_sum_states(const ScanItem *item)
{
    const ScanPlan *p = item->plan;
    if (item->first_segment > 0)
        return;
    for (int64_t s = 2; s < item->segments; s++)
        add_decayed_states(item, boundary(item, p->prefix, s), boundary(item, p->prefix, s - 1),
                           s - 1);
    for (int64_t s = item->segments - 3; p->backward && s >= 0; s--)
        add_decayed_states(item, boundary(item, p->suffix, s), boundary(item, p->suffix, s + 1),
                           s + 1);
}

/* g: of a backward pass, or NULL */
static void compute_boundary_states(const ScanPlan *p, const ScanBackward *g)
{
    if (p->segments < 2 || p->queries_first)
        return;
    EACH_ITEM(item, p) compute_prefix_states(&item);
    if (!p->parallel)
        return;
    if (g)
        EACH_ITEM(item, p) compute_suffix_states(&item, g);
    EACH_ITEM(item, p) prefix_sum_states(&item);
}

/* --------------------------------------------------------------------------------------- causal */

static void forward_item(const ScanItem *item, Real *out, Real *den, Real *final_state)
{
    const ScanPlan *p = item->plan;
    ScanRange range = segment_range(item, item->first_segment, SCAN);
    range.zero_before = item->first_segment == 0 && !p->options->state;
    range.state_after = final_state && item->end_segment == item->segments;
    load_prefix_states(item, item->buffers.S, item->first_segment);
    const ScanBuffers *m = &item->buffers;
    Prefetch next = { .count = 0 };
    if (!out && range.state_after)
        add_keys_to_S(item, range);
    for (HeadChunk c = first_chunk(item, range); out && c.scan.count; next_chunk(&c)) {
        const Matrix a = load_a(&c), b = load_b(&c), v = load_v(&c);
        prefetch_after(&next, value_rows(&c, p->x->value));
        prefetch_after(&next, out_rows(&c, out));
        load_decay(&c);
        scale_chunk_rows(&c, m->lower, b);
        const Matrix num = scan_chunk(&c.scan, &next, a, b, v, S_of(&c));
        store_num_over_den(&c, out, den, num);
    }
    if (range.state_after)
        store_states(item, final_state, item->buffers.S);
}

/* dq and dden of a segment, by scan. */
static void backward_queries(const ScanItem *item, const ScanBackward *g, int64_t segment)
{
    const ScanPlan *p = item->plan;
    const Gradient dquery = g->d.x.query;
    ScanRange range = segment_range(item, segment, SCAN);
    range.zero_before = segment == 0 && !p->options->state;
    range.state_after = p->queries_first && segment + 1 < item->segments;
    load_prefix_states(item, item->buffers.S, segment);
    const ScanBuffers *m = &item->buffers;
    Prefetch next = { .count = 0 };
    for (HeadChunk c = first_chunk(item, range); c.scan.count; next_chunk(&c)) {
        load_decay(&c);
        const Matrix dnum = load_dnum(&c, g->dout, g->den, m->raise);
        compute_dden(&c, dnum, g->out);
        save_dden(&c, dnum);
        if (!dquery.data && !g->d.log_decay.data)
            continue;
        const Matrix a = load_a(&c), b = load_b(&c), v = load_v(&c);
        scale_chunk_rows(&c, m->lower, b);
        prefetch_after(&next, out_rows(&c, g->dout));
        prefetch_after(&next, out_rows(&c, g->out));
        prefetch_after(&next, value_rows(&c, p->x->value));
        if (dquery.data)
            prefetch_after(&next, query_rows(&c, dquery.data));
        c.scan.strict = g->d.log_decay.data;
        const Matrix da = scan_chunk(&c.scan, &next, dnum, v, b, S_transposed_of(&c));
        if (c.scan.strict) {
            complete_strict_scan(&c.scan, m->dots, NULL, a, dnum, v, b, da);
            add_to_dl(&c, 0, 1);
        }
        store_dquery(&c, dquery, da, a);
    }
    if (range.state_after)
        copy_states(item, boundary(item, p->prefix, segment + 1), m->S);
}

/* dk and dv of a segment, by scan_reverse. */
static void backward_keys(const ScanItem *item, const ScanBackward *g, int64_t segment)
{
    const ScanPlan *p = item->plan;
    const Gradient dkey = g->d.x.key, dvalue = g->d.x.value;
    const bool dstate = g->d.state, dlog_decay = g->d.log_decay.data;
    ScanRange range = segment_range(item, segment, SCAN_REVERSE);
    range.zero_before = segment + 1 == item->segments && !g->dfinal_state;
    range.state_after = segment > item->first_segment || dstate ||
                        (dlog_decay && (segment > 0 || item->plan->options->state));
    if (!dkey.data && !dvalue.data && !dstate && !dlog_decay)
        return;
    const ScanBuffers *m = &item->buffers;
    Prefetch next = { .count = 0 };
    for (HeadChunk c = first_chunk(item, range); c.scan.count; next_chunk(&c)) {
        const Matrix a = load_a(&c), b = load_b(&c), v = load_v(&c);
        load_decay(&c);
        const Matrix dnum = load_dnum(&c, g->dout, g->den, m->lower);
        load_dden(&c, dnum);
        prefetch_after(&next, value_rows(&c, p->x->value));
        prefetch_after(&next, out_rows(&c, g->dout));
        if (!dlog_decay)
            scale_chunk_rows(&c, m->raise, v);
        if (dkey.data || dstate || dlog_decay) {
            c.scan.strict = dlog_decay;
            const Matrix db = scan_chunk(&c.scan, &next, v, dnum, a, R_transposed_of(&c));
            if (dlog_decay) {
                complete_strict_scan(&c.scan, m->dots, m->raise, b, v, dnum, a, db);
                add_to_dl(&c, 1, -1);
            }
            c.scan.strict = false;
            store_dkey(&c, dkey, db, b);
        }
        if (dkey.data)
            prefetch_after(&next, key_rows(&c, dkey.data));
        if (dvalue.data)
            prefetch_after(&next, value_rows(&c, dvalue.data));
        if (dvalue.data || dstate) {
            scale_chunk_rows(&c, m->raise, b);
            const Matrix R = without_last(R_of(&c));
            const Matrix dv = scan_chunk(&c.scan, &next, b, a, without_last(dnum), R);
            store_dvalue(&c, dvalue, dv);
        }
    }
}

/* dk and dv of a segment from R~ alone, if there is no dL/dout. */
static void backward_keys_of_state(const ScanItem *item, const ScanBackward *g, int64_t segment)
{
    const Gradient dkey = g->d.x.key, dvalue = g->d.x.value;
    Prefetch next = { .count = 0 };
    const ScanRange range = segment_range(item, segment, SCAN_REVERSE);
    for (HeadChunk c = first_chunk(item, range); c.scan.count; next_chunk(&c)) {
        const Matrix b = load_b(&c), v = load_v(&c);
        const Real *fade = load_fade(&c);
        scale_chunk_rows(&c, fade, v);
        prefetch_after(&next, value_rows(&c, item->plan->x->value));
        const Matrix db = state_read(&c.scan, &next, v, R_transposed_of(&c));
        if (g->d.log_decay.data) {
            dots_of_rows(item->buffers.dots, b, db, c.scan.count);
            add_to_dl(&c, 0, -1);
        }
        store_dkey(&c, dkey, db, b);
        scale_chunk_rows(&c, fade, b);
        const Matrix dv = state_read(&c.scan, &next, b, without_last(R_of(&c)));
        store_dvalue(&c, dvalue, dv);
        fade_states(&c, R_of(&c), without_last(R_transposed_of(&c)));
    }
}

/* dl of the position after the item's last: 0 after the sequence, unknown (NaN) if more follows */
static void start_log_decay_gradients(const ScanItem *item, const ScanBackward *g, double *after)
{
    const bool ends = item->end_segment == item->segments && !g->dfinal_state;
    for (int64_t k = 0; k < item->end_head - item->first_head; k++)
        after[k] = ends ? 0 : (double)NAN;
}

static void backward_item(const ScanItem *item, const ScanBackward *g)
{
    const ScanBuffers *m = &item->buffers;
    const bool queries_first = item->plan->queries_first, dlog_decay = g->d.log_decay.data;
    double after[GROUP];
    for (int64_t s = item->first_segment; queries_first && g->dout && s < item->end_segment; s++)
        backward_queries(item, g, s);
    load_suffix_states(item, m->R, item->end_segment - 1, g->dfinal_state);
    transpose_states(item, m->R_t, m->R);
    start_log_decay_gradients(item, g, after);
    for (int64_t s = item->end_segment - 1; s >= item->first_segment; s--) {
        if (g->dout && !queries_first)
            backward_queries(item, g, s);
        if (g->dout)
            backward_keys(item, g, s);
        else
            backward_keys_of_state(item, g, s);
        if (dlog_decay && g->dout)
            sum_log_decay_gradients(item, g->d.log_decay, segment_range(item, s, SCAN), after);
    }
    if (dlog_decay && !g->dout) /* there are no prefix states: one sum over all positions */
        sum_log_decay_gradients(item, g->d.log_decay, (ScanRange){ .end = item->length }, after);
    if (g->d.state && item->first_segment == 0)
        store_states(item, g->d.state, m->R);
}

static void causal_forward(TensorType type, Real *out, Real *den, Real *final_state,
                           const LinearScan *s)
{
    const ScanPlan p = plan_scan(type, s, true, false);
    compute_boundary_states(&p, NULL);
    EACH_ITEM(item, &p) forward_item(&item, out, den, final_state);
    free_plan(&p);
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

static void causal_backward(TensorType type, ScanBackward g, const LinearScan *s)
{
    LinearScan scan = *s;
    if (!g.dout)
        scan.form = FORM_RECURRENT;
    const ScanPlan p = plan_scan(type, &scan, true, true);
    if (g.dout)
        compute_boundary_states(&p, &g);
    EACH_ITEM(item, &p) backward_item(&item, &g);
    free_plan(&p);
}

void causal_linear_attention_backward_cpu(LinearScanGradient d, const Real *dout,
                                          const Real *dfinal_state, const Real *out,
                                          const Real *den, const LinearScan *s)
{
    causal_backward(TENSOR_REAL, (ScanBackward){ d, dout, dfinal_state, out, den }, s);
}

void causal_linear_attention_backward_bf16(LinearScanGradient d, const Real *dout,
                                           const Real *dfinal_state, const Real *out,
                                           const Real *den, const LinearScan *s)
{
    causal_backward(TENSOR_BF16, (ScanBackward){ d, dout, dfinal_state, out, den }, s);
}

/* The state alone, without out and dout. */
void causal_linear_state_forward_cpu(Real *state, const LinearScan *s)
{
    causal_forward(TENSOR_REAL, NULL, NULL, state, s);
}

void causal_linear_state_forward_bf16(Real *state, const LinearScan *s)
{
    causal_forward(TENSOR_BF16, NULL, NULL, state, s);
}

void causal_linear_state_backward_cpu(LinearScanGradient d, const Real *dstate, const LinearScan *s)
{
    causal_backward(TENSOR_REAL, (ScanBackward){ .d = d, .dfinal_state = dstate }, s);
}

void causal_linear_state_backward_bf16(LinearScanGradient d, const Real *dstate,
                                       const LinearScan *s)
{
    causal_backward(TENSOR_BF16, (ScanBackward){ .d = d, .dfinal_state = dstate }, s);
}

/* ----------------------------------------------------------------------------------- not causal
 * Every position reads the totals S~ = sum_j b_j v~_j^T and R~ = sum_i a_i dnum~_i^T. */

static ScanRange first_positions(int64_t count)
{
    return (ScanRange){ 0, count, SCAN, false, true };
}

/* S~, in the backward pass transposed. */
static void compute_S(const ScanItem *item)
{
    const ScanBuffers *m = &item->buffers;
    zero_states(item, m->S);
    zero_states(item, m->earlier);
    add_keys_to_S(item, first_positions(item->keys));
    add_states(item, m->S, m->earlier);
}

static void forward_item_noncausal(const ScanItem *item, Real *out, Real *den)
{
    Prefetch next = { .count = 0 };
    compute_S(item);
    const ScanRange queries = first_positions(item->length);
    for (HeadChunk c = first_chunk(item, queries); c.scan.count; next_chunk(&c)) {
        const Matrix a = load_a(&c);
        prefetch_after(&next, out_rows(&c, out));
        const Matrix num = state_read(&c.scan, &next, a, S_of(&c));
        store_num_over_den(&c, out, den, num);
    }
}

/* dq from S~, and R~. */
static void backward_queries_noncausal(const ScanItem *item, const ScanBackward *g)
{
    const Gradient dquery = g->d.x.query;
    Real *R = item->buffers.R, *earlier = item->buffers.earlier;
    Prefetch next = { .count = 0 };
    zero_states(item, R);
    zero_states(item, earlier);
    const ScanRange queries = first_positions(item->length);
    for (HeadChunk c = first_chunk(item, queries); c.scan.count; next_chunk(&c)) {
        begin_block(&c, R, earlier);
        const Matrix a = load_a(&c), dnum = load_dnum(&c, g->dout, g->den, NULL);
        compute_dden(&c, dnum, g->out);
        prefetch_after(&next, out_rows(&c, g->dout));
        prefetch_after(&next, out_rows(&c, g->out));
        state_add(&c.scan, &next, a, dnum, R_of(&c));
        if (dquery.data)
            prefetch_after(&next, query_rows(&c, dquery.data));
        const Matrix da = state_read(&c.scan, &next, dnum, S_transposed_of(&c));
        store_dquery(&c, dquery, da, a);
    }
    add_states(item, R, earlier);
}

/* dk and dv, from R~. */
static void backward_keys_noncausal(const ScanItem *item, const ScanBackward *g)
{
    const AttentionInputs *x = item->plan->x;
    const Gradient dkey = g->d.x.key, dvalue = g->d.x.value;
    Prefetch next = { .count = 0 };
    transpose_states(item, item->buffers.R_t, item->buffers.R);
    const ScanRange keys = first_positions(x->keys);
    for (HeadChunk c = first_chunk(item, keys); c.scan.count; next_chunk(&c)) {
        const Matrix b = load_b(&c), v = load_v(&c);
        prefetch_after(&next, value_rows(&c, x->value));
        const Matrix db = state_read(&c.scan, &next, v, R_transposed_of(&c));
        store_dkey(&c, dkey, db, b);
        if (dkey.data)
            prefetch_after(&next, key_rows(&c, dkey.data));
        if (dvalue.data)
            prefetch_after(&next, value_rows(&c, dvalue.data));
        const Matrix dv = state_read(&c.scan, &next, b, without_last(R_of(&c)));
        store_dvalue(&c, dvalue, dv);
    }
}

static void backward_item_noncausal(const ScanItem *item, const ScanBackward *g)
{
    compute_S(item);
    backward_queries_noncausal(item, g);
    backward_keys_noncausal(item, g);
}

static void noncausal_forward(TensorType type, Real *out, Real *den, const LinearScan *s)
{
    const ScanPlan p = plan_scan(type, s, false, false);
    EACH_ITEM(item, &p) forward_item_noncausal(&item, out, den);
    free_plan(&p);
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
    const ScanPlan p = plan_scan(type, s, false, true);
    const ScanBackward g = { .d.x = d, .dout = dout, .out = out, .den = den };
    EACH_ITEM(item, &p) backward_item_noncausal(&item, &g);
    free_plan(&p);
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
