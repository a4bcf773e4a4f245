/* Causal linear attention on the CPU: the scans of causal.c, written as one function that is called
 * four times,
 *
 *     scan(x, y, w, o, T):  for each position in turn  T <- T + y w^T,  o <- o + T^T x
 *
 *     num = scan(a, b, v)                 da = scan(dnum, v, b)            position 1 to N
 *     db  = scan_reverse(v, dnum, a)      dv = scan_reverse(b, a, dnum)    position N to 1
 *
 * The normalizer (the last column of v~, all 1; in da and db that of dnum~, dden) needs no scan:
 * its part of T is one vector, z_i = sum_{j<=i} b_j or r_j = sum_{i>=j} dden_i a_i, stored after T.
 *
 * A thread processes a group of neighbouring heads, whose rows are contiguous, in chunks of
 * positions: it packs the rows (in reverse order for scan_reverse), scans them (causal_scan_cpu.h),
 * and unpacks the results.
 *
 * A sequence is cut into segments where that helps. The prefix states at the segment boundaries are
 * computed first, from keys and values alone. Then
 *   - several threads process several segments of a sequence: the chunk-parallel form;
 *   - or, in the backward pass, one thread processes the segments from the last to the first, each
 *     with a scan for da and a scan_reverse for db and dv, and stores dden of one segment only. */
#include "ops/attention/linear/causal.h"
#include "ops/attention/linear/causal_pass_cpu.h"
#include "ops/attention/linear/causal_scan_cpu.h"

/* ---------------------------------------------------------------------------------- packed rows */

/* Offset of the chunk's first row, at this row stride with `columns` elements per head. */
static int64_t place(const Chunk *c, int64_t stride, int64_t columns)
{
    return c->row * stride + c->head * columns;
}

/* a = phi(q) */
static void pack_queries(const Pass *pass, const Chunk *c)
{
    const AttentionInputs *x = pass->x;
    pack_mapped(pass->scan->features, c->a, x->query + place(c, x->query_stride, x->D),
                c->step * x->query_stride, c->count, x->D, pass->plan.D);
}

static void zero_keys_left_out(const Chunk *c, Real *rows, int64_t padded)
{
    zero_rows(rows, c->first_key, padded);
    zero_rows(rows + c->end_key * padded, c->count - c->end_key, padded);
}

/* b = phi(k), v; 0 for masked keys */
static void pack_keys(const Pass *pass, const Chunk *c)
{
    const AttentionInputs *x = pass->x;
    const int64_t D = pass->plan.D, M = pass->plan.M;
    const int64_t key_step = c->step * x->key_stride, value_step = c->step * x->value_stride;
    const Real *key = x->key + place(c, x->key_stride, x->D) + c->first_key * key_step;
    const Real *value = x->value + place(c, x->value_stride, x->M) + c->first_key * value_step;
    const int64_t count = c->end_key - c->first_key;
    pack_mapped(pass->scan->features, c->b + c->first_key * D, key, key_step, count, x->D, D);
    pack(c->v + c->first_key * M, value, value_step, count, x->M, M);
    zero_keys_left_out(c, c->b, D);
    zero_keys_left_out(c, c->v, M);
}

/* dnum_i = g_i / den_i */
static void pack_upstream(const Pass *pass, const Chunk *c)
{
    const AttentionInputs *x = pass->x;
    const int64_t M = pass->plan.M, stride = x->H * x->M;
    pack(c->g, pass->dout + place(c, stride, x->M), c->step * stride, c->count, x->M, M);
    for (int64_t i = 0; i < c->count; i++)
        multiply_row(c->g + i * M, 1 / pass->den[(c->row + i * c->step) * x->H + c->head], M);
}

/* dden_i = -dnum_i.out_i */
static void find_delta(const Pass *pass, const Chunk *c)
{
    const AttentionInputs *x = pass->x;
    const int64_t M = pass->plan.M, stride = x->H * x->M;
    Real *out = c->o;
    pack(out, pass->out + place(c, stride, x->M), c->step * stride, c->count, x->M, M);
    for (int64_t i = 0; i < c->count; i++)
        c->delta[i * c->step] = -dot(c->g + i * M, out + i * M, M);
}

static void unpack_results(const Chunk *c, Gradient to, const Real *from, int64_t stride,
                           int64_t columns, int64_t padded)
{
    to.data += place(c, stride, columns);
    unpack(to, from, c->step * stride, c->count, columns, padded);
}

/* Adds the head's rows of the next chunk to those to prefetch; data NULL: adds none. */
static void add_lines(Lines *next, const Chunk *c, const Real *data, int64_t stride,
                      int64_t columns)
{
    const int64_t step = c->step * stride, first = place(c, stride, columns) + c->count * step;
    for (int64_t i = 0; data && i < columns && next->count < MOST_LINES; i += LINE) {
        next->first[next->count] = data + first + i;
        next->step[next->count++] = step;
    }
}

static void next_values(Lines *next, const Pass *pass, const Chunk *c)
{
    add_lines(next, c, pass->x->value, pass->x->value_stride, pass->x->M);
}

/* data: out or dout */
static void next_outs(Lines *next, const Pass *pass, const Chunk *c, const Real *data)
{
    add_lines(next, c, data, pass->x->H * pass->x->M, pass->x->M);
}

/* For each position in turn  T <- T + y w^T,  o <- o + T^T x; meanwhile prefetches `next`. */
static void scan(const Pass *pass, const Chunk *c, const Real *x, const Real *y, const Real *w,
                 Real *o, Real *T, int64_t Y, int64_t W, const Lines *next)
{
    if (!pass->plan.products) {
        scan_by_position(x, y, w, o, T, c->count, Y, W, next);
        return;
    }
    for (int64_t i = 0; i < c->count; i++)
        ask_for_lines(next, 0, next->count, i);
    scan_by_products(x, y, w, o, T, c->count, Y, W, c->first, c->last, c->memory);
}

/* --------------------------------------------------------------------------------------- states */

/* state [D, M + 1] to the layout of the kernels; contribute_state converts back. */
static void unpack_state(State to, const Real *state, const Pass *pass, bool transposed)
{
    const AttentionInputs *x = pass->x;
    const Plan *p = &pass->plan;
    const int64_t row = transposed ? 1 : p->M, column = transposed ? p->D : 1;
    zero_rows(to.matrix, 1, p->state);
    for (int64_t d = 0; d < x->D; d++, state += x->M + 1) {
        for (int64_t m = 0; m < x->M; m++)
            to.matrix[d * row + m * column] = state[m];
        to.vector[d] = state[x->M];
    }
}

static void contribute_state(Gradient to, State from, const Pass *pass)
{
    const AttentionInputs *x = pass->x;
    for (int64_t d = 0; d < x->D; d++, to.data += x->M + 1) {
        for (int64_t m = 0; m < x->M; m++)
            contribute(&to.data[m], to.accumulate, from.matrix[d * pass->plan.M + m]);
        contribute(&to.data[x->M], to.accumulate, from.vector[d]);
    }
}

/* Offset in [B, H, D, M + 1] of the state of a head of the item's sequence. */
static int64_t state_place(const Pass *pass, const Item *item, int64_t head)
{
    const AttentionInputs *x = pass->x;
    return (item->sequence * x->H + head) * x->D * (x->M + 1);
}

/* Offset in [borders, H, state] of the state at a segment's boundary. The number of segments of
 * each sequence is rounded up, so a sequence reserves one more than its share of all positions. */
static int64_t border_place(const Pass *pass, const Item *item, int64_t segment, int64_t head)
{
    const Plan *p = &pass->plan;
    const int64_t first = item->start / p->segment + item->sequence;
    return ((first + segment) * pass->x->H + head) * p->state;
}

/* The prefix state S~ of a segment */
static void load_begin(const Pass *pass, const Item *item, int64_t segment, int64_t head)
{
    const State S = pass_chunk(pass, item, head).S;
    const size_t bytes = (size_t)pass->plan.state * sizeof(Real);
    if (segment > 0)
        memcpy(S.matrix, pass->begins + border_place(pass, item, segment, head), bytes);
    else if (pass->scan->state)
        unpack_state(S, pass->scan->state + state_place(pass, item, head), pass, pass->backward);
    else
        memset(S.matrix, 0, bytes);
}

static void transpose(Real *to, const Real *from, int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            to[c * rows + r] = from[r * columns + c];
}

/* The suffix state R~ of a segment, and its transpose */
static void load_end(const Pass *pass, const Item *item, int64_t segment, int64_t head)
{
    const Plan *p = &pass->plan;
    const Chunk c = pass_chunk(pass, item, head);
    const size_t bytes = (size_t)p->state * sizeof(Real);
    const bool outermost = segment + 1 == item->segments;
    if (outermost && !pass->dfinal_state) {
        memset(c.R.matrix, 0, bytes);
        memset(c.R_transposed.matrix, 0, bytes);
        return;
    }
    if (outermost)
        unpack_state(c.R, pass->dfinal_state + state_place(pass, item, head), pass, false);
    else
        memcpy(c.R.matrix, pass->ends + border_place(pass, item, segment, head), bytes);
    transpose(c.R_transposed.matrix, c.R.matrix, p->D, p->M);
}

/* --------------------------------------------------------------------- prefix and suffix states */

/* z <- z + b_i     S <- S + b_i v_i^T */
static void sum_keys(const Pass *pass, const Chunk *c)
{
    const int64_t D = pass->plan.D, M = pass->plan.M;
    pack_keys(pass, c);
    Lines next;
    next.count = 0;
    next_values(&next, pass, c);
    add_rows(c->S.vector, c->b, c->count, D);
    for (int64_t i = 0; i < c->count; i++)
        ask_for_lines(&next, 0, next.count, i);
    if (pass->backward)
        add_outer(c->S.matrix, c->v, c->b, c->count, M, D);
    else
        add_outer(c->S.matrix, c->b, c->v, c->count, D, M);
}

/* r <- r + dden_i a_i     R <- R + a_i dnum_i^T */
static void sum_queries(const Pass *pass, const Chunk *c)
{
    const int64_t D = pass->plan.D, M = pass->plan.M;
    pack_queries(pass, c);
    pack_upstream(pass, c);
    find_delta(pass, c);
    Lines next;
    next.count = 0;
    next_outs(&next, pass, c, pass->dout);
    next_outs(&next, pass, c, pass->out);
    for (int64_t i = 0; i < c->count; i++) {
        add_multiple(c->R.vector, c->delta[i * c->step], c->a + i * D, D);
        ask_for_lines(&next, 0, next.count, i);
    }
    add_outer(c->R.matrix, c->a, c->g, c->count, D, M);
}

/* The prefix states of the segments after each of the item's, summed from the initial state or, if
 * the item does not start with the first segment, from 0: then add_up completes them. */
static void find_begins(const Pass *pass, const Item *item)
{
    const size_t bytes = (size_t)pass->plan.state * sizeof(Real);
    for (int64_t head = item->first_head; head < item->end_head; head++) {
        if (item->first_segment == 0)
            load_begin(pass, item, 0, head);
        else
            memset(pass_chunk(pass, item, head).S.matrix, 0, bytes);
    }
    for (int64_t s = item->first_segment; s < item->end_segment && s + 1 < item->segments; s++) {
        pass_sweep(pass, item, s, 1, true, sum_keys);
        for (int64_t head = item->first_head; head < item->end_head; head++)
            memcpy(pass->begins + border_place(pass, item, s + 1, head),
                   pass_chunk(pass, item, head).S.matrix, bytes);
    }
}

/* The suffix state of the segment before the item's, summed from dL/dS~_N or, if the item's segment
 * is not the last, from 0: then add_up completes it. */
static void find_end(const Pass *pass, const Item *item)
{
    const size_t bytes = (size_t)pass->plan.state * sizeof(Real);
    const int64_t s = item->first_segment;
    if (s == 0)
        return;
    for (int64_t head = item->first_head; head < item->end_head; head++) {
        if (s + 1 == item->segments)
            load_end(pass, item, s, head);
        else
            memset(pass_chunk(pass, item, head).R.matrix, 0, bytes);
    }
    pass_sweep(pass, item, s, -1, true, sum_queries);
    for (int64_t head = item->first_head; head < item->end_head; head++)
        memcpy(pass->ends + border_place(pass, item, s - 1, head),
               pass_chunk(pass, item, head).R.matrix, bytes);
}

/* The sums over single segments become prefix states and suffix states. */
static void add_up(const Pass *pass, const Item *item)
{
    if (item->first_segment > 0)
        return;
    for (int64_t head = item->first_head; head < item->end_head; head++) {
        for (int64_t s = 2; s < item->segments; s++)
            add_multiple(pass->begins + border_place(pass, item, s, head), 1,
                         pass->begins + border_place(pass, item, s - 1, head), pass->plan.state);
        for (int64_t s = item->segments - 3; pass->ends && s >= 0; s--)
            add_multiple(pass->ends + border_place(pass, item, s, head), 1,
                         pass->ends + border_place(pass, item, s + 1, head), pass->plan.state);
    }
}

static void find_borders(const Pass *pass)
{
    if (pass->plan.segments < 2)
        return;
    pass_run(pass, find_begins);
    if (!pass->plan.parallel)
        return;
    if (pass->ends)
        pass_run(pass, find_end);
    pass_run(pass, add_up);
}

/* -------------------------------------------------------------------------------------- forward */

/* z_i = z_{i-1} + b_i     den_i = a_i.z_i + eps     out_i = num_i / den_i */
static void find_out(const Pass *pass, const Chunk *c)
{
    const AttentionInputs *x = pass->x;
    const int64_t D = pass->plan.D, M = pass->plan.M;
    pack_queries(pass, c);
    pack_keys(pass, c);
    zero_rows(c->o, c->count, M);
    Lines next;
    next.count = 0;
    next_values(&next, pass, c);
    next_outs(&next, pass, c, pass->new_out);
    scan(pass, c, c->a, c->b, c->v, c->o, c->S.matrix, D, M, &next);
    Real *z = c->da;
    for (int64_t d = 0; d < D; d += LANES) {
        Vector z_i = vector(c->S.vector + d);
        for (int64_t i = 0; i < c->count; i++)
            *at_vector(z + i * D + d) = z_i += vector(c->b + i * D + d);
        *at_vector(c->S.vector + d) = z_i;
    }
    for (int64_t i = 0; i < c->count; i++) {
        const Real den = dot(c->a + i * D, z + i * D, D) + pass->scan->eps;
        pass->new_den[(c->row + i) * x->H + c->head] = den;
        multiply_row(c->o + i * M, 1 / den, M);
    }
    unpack_results(c, (Gradient){ pass->new_out, false }, c->o, x->H * x->M, x->M, M);
}

static void forward_item(const Pass *pass, const Item *item)
{
    for (int64_t head = item->first_head; head < item->end_head; head++)
        load_begin(pass, item, item->first_segment, head);
    for (int64_t s = item->first_segment; s < item->end_segment; s++)
        pass_sweep(pass, item, s, 1, s + 1 < item->end_segment || pass->final_state, find_out);
    if (!pass->final_state || item->end_segment < item->segments)
        return;
    for (int64_t head = item->first_head; head < item->end_head; head++)
        contribute_state((Gradient){ pass->final_state + state_place(pass, item, head), false },
                         pass_chunk(pass, item, head).S, pass);
}

/* ------------------------------------------------------------------------------------- backward */

/* da_i = dden_i z_i + S_i dnum_i */
static void find_dquery(const Pass *pass, const Chunk *c)
{
    const AttentionInputs *x = pass->x;
    const int64_t D = pass->plan.D, M = pass->plan.M;
    pack_upstream(pass, c);
    find_delta(pass, c);
    if (!pass->d.x.query.data)
        return;
    pack_queries(pass, c);
    pack_keys(pass, c);
    for (int64_t d = 0; d < D; d += LANES) {
        Vector z_i = vector(c->S.vector + d);
        for (int64_t i = 0; i < c->count; i++) {
            z_i += vector(c->b + i * D + d);
            *at_vector(c->da + i * D + d) = c->delta[i] * z_i;
        }
        *at_vector(c->S.vector + d) = z_i;
    }
    Lines next;
    next.count = 0;
    next_values(&next, pass, c);
    next_outs(&next, pass, c, pass->dout);
    next_outs(&next, pass, c, pass->out);
    add_lines(&next, c, pass->d.x.query.data, x->query_stride, x->D);
    scan(pass, c, c->g, c->v, c->b, c->da, c->S.matrix, M, D, &next);
    through_map(pass->scan->features, c->da, c->a, c->count * D);
    unpack_results(c, pass->d.x.query, c->da, x->query_stride, x->D, D);
}

/* db_j = r_j + R_j v_j     dv_j = R_j^T b_j     where r_j = sum_{i>=j} dden_i a_i */
static void find_dkey_dvalue(const Pass *pass, const Chunk *c)
{
    const AttentionInputs *x = pass->x;
    const int64_t D = pass->plan.D, M = pass->plan.M;
    pack_queries(pass, c);
    pack_keys(pass, c);
    pack_upstream(pass, c);
    Real *db = c->da, *dv = c->o;
    Lines next;
    for (int64_t d = 0; d < D; d += LANES) {
        Vector r_i = vector(c->R.vector + d);
        for (int64_t i = 0; i < c->count; i++)
            *at_vector(db + i * D + d) = r_i += c->delta[-i] * vector(c->a + i * D + d);
        *at_vector(c->R.vector + d) = r_i;
    }
    if (pass->d.x.key.data) {
        next.count = 0;
        add_lines(&next, c, pass->d.x.key.data, x->key_stride, x->D);
        scan(pass, c, c->v, c->g, c->a, db, c->R_transposed.matrix, M, D, &next);
        through_map(pass->scan->features, db, c->b, c->count * D);
        zero_keys_left_out(c, db, D);
        unpack_results(c, pass->d.x.key, db, x->key_stride, x->D, D);
    }
    if (pass->d.x.value.data || pass->d.state.data) {
        zero_rows(dv, c->count, M);
        next.count = 0;
        next_values(&next, pass, c);
        next_outs(&next, pass, c, pass->dout);
        add_lines(&next, c, pass->d.x.value.data, x->value_stride, x->M);
        scan(pass, c, c->b, c->a, c->g, dv, c->R.matrix, D, M, &next);
        zero_keys_left_out(c, dv, M);
    }
    if (pass->d.x.value.data)
        unpack_results(c, pass->d.x.value, dv, x->value_stride, x->M, M);
}

static void backward_item(const Pass *pass, const Item *item)
{
    const LinearScanGradient *d = &pass->d;
    const bool back = d->x.key.data || d->x.value.data || d->state.data;
    for (int64_t head = item->first_head; head < item->end_head; head++)
        load_end(pass, item, item->end_segment - 1, head);
    for (int64_t s = item->end_segment - 1; s >= item->first_segment; s--) {
        for (int64_t head = item->first_head; head < item->end_head; head++)
            load_begin(pass, item, s, head);
        pass_sweep(pass, item, s, 1, false, find_dquery);
        if (back)
            pass_sweep(pass, item, s, -1, s > item->first_segment || d->state.data,
                       find_dkey_dvalue);
    }
    if (!d->state.data || item->first_segment > 0)
        return;
    for (int64_t head = item->first_head; head < item->end_head; head++)
        contribute_state(
            (Gradient){ d->state.data + state_place(pass, item, head), d->state.accumulate },
            pass_chunk(pass, item, head).R, pass);
}

/* -------------------------------------------------------------------------------------- kernels */

static int64_t border_states(const Plan *p, const AttentionInputs *x)
{
    return p->segments > 1 ? p->borders * x->H * p->state : 0;
}

int64_t causal_linear_attention_scratch_cpu(const LinearScan *s, bool backward)
{
    const Plan p = pass_plan(s, backward);
    const int64_t kinds = backward && p.parallel ? 2 : 1;
    return p.threads * p.work + kinds * border_states(&p, &s->x);
}

void causal_linear_attention_forward_cpu(Real *out, Real *den, Real *final_state, Real *scratch,
                                         const LinearScan *s)
{
    Pass pass = {
        .scan = s,
        .x = &s->x,
        .plan = pass_plan(s, false),
        .new_out = out,
        .new_den = den,
        .final_state = final_state,
        .scratch = scratch,
    };
    pass.begins = scratch + pass.plan.threads * pass.plan.work;
    find_borders(&pass);
    pass_run(&pass, forward_item);
}

void causal_linear_attention_backward_cpu(LinearScanGradient d, const Real *dout,
                                          const Real *dfinal_state, const Real *out,
                                          const Real *den, Real *scratch, const LinearScan *s)
{
    Pass pass = {
        .scan = s,
        .x = &s->x,
        .plan = pass_plan(s, true),
        .out = out,
        .den = den,
        .dout = dout,
        .dfinal_state = dfinal_state,
        .d = d,
        .backward = true,
        .scratch = scratch,
    };
    pass.begins = scratch + pass.plan.threads * pass.plan.work;
    if (pass.plan.parallel)
        pass.ends = pass.begins + border_states(&pass.plan, &s->x);
    find_borders(&pass);
    pass_run(&pass, backward_item);
}
