/* Causal linear attention on the CPU: the scans of causal_linear_attention.c, written as one
 * primitive and called four times,
 *
 *     scan(x, y, w, o, T):  for each position in turn  T <- T + y w^T,  o <- o + T^T x
 *
 *     num = scan(a, b, v)             da = scan(ghat, v, b)         positions first to last
 *     db  = scan_back(v, ghat, a)     dv = scan_back(b, a, ghat)    the same, last to first
 *
 * The normaliser (v~'s last column, all 1; in da and db g~'s last, delta) needs no scan: its part
 * of T is the one vector z_i = sum_{j<=i} b_j, or r_j = sum_{i>=j} delta_i a_i, kept beside T.
 *
 * A thread takes a group of neighbouring heads, whose rows touch in memory, and some positions of
 * each in turn: it packs their rows (last to first for the scans back), scans them (causal_scan_cpu.h),
 * and unpacks the results.
 *
 * A sequence is cut into segments where that helps: the states at their borders are summed first,
 * from keys and values alone, and then
 *   - several threads can work at several segments of it, which is the chunk-parallel form;
 *   - or, in the backward pass, one thread goes from the last segment to the first, and the scans back
 *     find a segment's rows in the cache, where the scan for da has left them. */
#include "ops/causal_linear_attention.h"
#include "ops/causal_scan_cpu.h"

#include <omp.h>

/* Heads that a thread takes at once, at most. */
enum { GROUP = 8 };

/* ---------------------------------------------------------------------------------------- the plan */
typedef struct Plan {
    int threads;
    int64_t group, groups; /* heads of an item of work, and such groups of a sequence's heads */
    int64_t rows;          /* positions that are packed at once, */
    bool products;         /* and scanned by products of matrices */
    int64_t segment;       /* positions of a segment, */
    int64_t segments;      /* of which the longest sequence has so many, */
    bool parallel;         /* worked at by several threads */
    int64_t D, M;          /* padded */
    int64_t state, work;   /* numbers of memory: a state [D, M] with its vector [D]; a thread's */
    int64_t borders;       /* segments of all sequences, at most */
} Plan;

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t rounded_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Where sequence s begins among all positions. */
static int64_t sequence_start(const Attention *x, int64_t s)
{
    return x->offsets ? x->offsets[s] : s * x->N;
}

static int64_t sequence_length(const Attention *x, int64_t s)
{
    return sequence_start(x, s + 1) - sequence_start(x, s);
}

static int64_t longest_sequence(const Attention *x)
{
    int64_t longest = x->offsets ? 0 : x->N;
    for (int64_t s = 0; x->offsets && s < x->B; s++)
        longest = larger(longest, sequence_length(x, s));
    return longest;
}

static AttentionForm best_form(const Attention *x, int64_t longest, int threads)
{
    if (longest <= 32)
        return FORM_QUADRATIC;
    return x->B * x->H < threads && longest >= 512 ? FORM_CHUNK_PARALLEL : FORM_RECURRENT;
}

static void choose_rows(Plan *p, AttentionForm form, int64_t chunk, int64_t longest)
{
    p->products = form == FORM_QUADRATIC || form == FORM_CHUNKED;
    if (form == FORM_QUADRATIC)
        p->rows = larger(longest, 1);
    else
        p->rows = chunk ? smaller(chunk, larger(longest, 1)) : form == FORM_CHUNKED ? 64 : CHUNK;
}

static void choose_segments(Plan *p, const Attention *x, AttentionForm form, int64_t longest,
                            bool backward)
{
    p->segment = larger(longest, 1);
    p->parallel = form == FORM_CHUNK_PARALLEL;
    if (p->parallel) {
        const int64_t wanted = larger(4 * p->threads / (x->B * x->H), 2);
        p->segment = larger((longest + wanted - 1) / wanted, 1);
    } else if (backward && form != FORM_QUADRATIC) {
        p->segment = smaller(p->segment, 64 * p->D);
    }
    p->segment = rounded_up(p->segment, p->rows);
    p->segments = larger((longest + p->segment - 1) / p->segment, 1);
}

static Plan make_plan(const LinearScan *scan, bool backward)
{
    const Attention *x = &scan->x;
    Plan p = { .threads = device_threads() };
    const int64_t heads = x->B * x->H, longest = longest_sequence(x);
    const AttentionForm form = scan->form ? scan->form : best_form(x, longest, p.threads);
    p.D = padded_size(x->D);
    p.M = padded_size(x->M);
    p.group = heads < p.threads ? 1 : smaller(smaller(heads / p.threads, x->H), GROUP);
    p.groups = (x->H + p.group - 1) / p.group;
    choose_rows(&p, form, scan->chunk, longest);
    choose_segments(&p, x, form, longest, backward);
    p.state = p.D * p.M + p.D;
    p.borders = (x->offsets ? x->N : x->B * x->N) / p.segment + x->B;
    p.work = 3 * padded_size(p.rows) * (p.D + p.M) + (backward ? 3 : 1) * p.group * p.state;
    if (p.products)
        p.work += scan_by_products_memory(p.rows, larger(p.D, p.M));
    if (backward)
        p.work += rounded_up(p.group * p.segment, UNIT);
    return p;
}

/* ------------------------------------------------------------------------------- sharing the work */

/* What a pass over all positions works on: tensors [B, N, H, M], and numbers [B, N, H]. */
typedef struct Pass {
    const LinearScan *scan;
    const Attention *x;
    Plan plan;
    Real *new_out, *new_den, *final_state; /* results of the forward pass, */
    const Real *out, *den, *dout;          /* which the backward pass reads */
    const Real *dfinal_state;
    LinearScanGradient d;
    bool backward;
    Real *scratch; /* a thread's work for each thread */
    Real *
        begins; /* [borders, H, state]: S~ where a segment begins, transposed in the backward pass, */
    Real *ends; /* likewise: R~ where a segment ends */
} Pass;

/* A state, [D, M] or transposed [M, D], and its vector, [D]. */
typedef struct State {
    Real *matrix, *vector;
} State;

/* Neighbouring heads of a sequence, some segments of it, and a thread's memory for them. */
typedef struct Item {
    int64_t sequence, start, length,
        keys; /* first position among all; positions; keys that count */
    int64_t segments, first_segment, end_segment; /* of the sequence; of the item */
    int64_t first_head, end_head;
    Real *memory;
} Item;

/* Some positions of one head, in the order of the scan: the first of them in row `row` of the tensors,
 * the next one in row + step (1, or -1 when the scan runs back), and a thread's memory for them. */
typedef struct Chunk {
    int64_t row, step, count, head;
    int64_t first_key, end_key; /* those of the positions whose keys count */
    bool first, last;           /* no state comes into the chunk; none is wanted after it */
    Real *a, *b, *da;           /* [rows, D]: phi(q), phi(k), da or db */
    Real *v, *g, *o;            /* [rows, M]: v, ghat, num or dv */
    Real *delta;                /* of the first position; of the next one, step further on */
    State S, R, R_transposed;   /* S transposed in the backward pass */
    Real *memory;               /* of scan_by_products */
} Chunk;

typedef void Step(const Pass *pass, const Chunk *chunk);

static Item item_at(const Pass *pass, int64_t index, Real *memory)
{
    const Attention *x = pass->x;
    const Plan *p = &pass->plan;
    const int64_t parts = p->parallel ? p->segments : 1;
    Item item = { .sequence = index / (parts * p->groups), .memory = memory };
    item.start = sequence_start(x, item.sequence);
    item.length = sequence_length(x, item.sequence);
    item.keys = x->key_lengths ? x->key_lengths[item.sequence] : item.length;
    item.segments = larger((item.length + p->segment - 1) / p->segment, 1);
    item.first_segment = index / p->groups % parts;
    item.end_segment = p->parallel ? smaller(item.first_segment + 1, item.segments) : item.segments;
    item.first_head = index % p->groups * p->group;
    item.end_head = smaller(item.first_head + p->group, x->H);
    return item;
}

static void run(const Pass *pass, void (*work)(const Pass *, const Item *))
{
    const Plan *p = &pass->plan;
    const int64_t items = pass->x->B * p->groups * (p->parallel ? p->segments : 1);
#pragma omp parallel for schedule(dynamic) num_threads(p->threads)
    for (int64_t i = 0; i < items; i++) {
        const Item item = item_at(pass, i, pass->scratch + omp_get_thread_num() * p->work);
        if (item.first_segment < item.end_segment)
            work(pass, &item);
    }
}

/* The item's memory: rows, then a state (or three) a head, then deltas. */
static Chunk chunk_of(const Pass *pass, const Item *item, int64_t head)
{
    const Plan *p = &pass->plan;
    const int64_t rows = padded_size(p->rows), index = head - item->first_head;
    Chunk c = { .head = head, .a = item->memory };
    c.b = c.a + rows * p->D;
    c.da = c.b + rows * p->D;
    c.v = c.da + rows * p->D;
    c.g = c.v + rows * p->M;
    c.o = c.g + rows * p->M;
    Real *states = c.o + rows * p->M;
    State *const all[] = { &c.S, &c.R, &c.R_transposed };
    const int64_t kinds = pass->backward ? 3 : 1;
    for (int64_t i = 0; i < kinds; i++) {
        all[i]->matrix = states + (kinds * index + i) * p->state;
        all[i]->vector = all[i]->matrix + p->D * p->M;
    }
    c.delta = states + kinds * p->group * p->state;
    c.memory = c.delta + (pass->backward ? rounded_up(p->group * p->segment, UNIT) : 0);
    c.delta += index * p->segment;
    return c;
}

/* Takes a step with every chunk of every head of a segment, first to last or (direction -1) last to
 * first; state_after: the state after it is wanted. */
static void sweep(const Pass *pass, const Item *item, int64_t segment, int64_t direction,
                  bool state_after, Step *step)
{
    const Plan *p = &pass->plan;
    const int64_t begin = segment * p->segment, end = smaller(begin + p->segment, item->length);
    const Real *state = direction > 0 ? pass->scan->state : pass->dfinal_state;
    const bool outer = segment == (direction > 0 ? 0 : item->segments - 1);
    for (int64_t n = 0; n < end - begin; n += p->rows)
        for (int64_t head = item->first_head; head < item->end_head; head++) {
            const int64_t position = direction > 0 ? begin + n : end - 1 - n;
            Chunk c = chunk_of(pass, item, head);
            c.row = item->start + position;
            c.step = direction;
            c.count = smaller(p->rows, end - begin - n);
            if (direction > 0) {
                c.end_key = larger(smaller(item->keys - position, c.count), 0);
            } else {
                c.first_key = smaller(larger(position + 1 - item->keys, 0), c.count);
                c.end_key = c.count;
            }
            c.delta += position - begin;
            c.first = outer && n == 0 && !state;
            c.last = !state_after && n + p->rows >= end - begin;
            step(pass, &c);
        }
}

/* ---------------------------------------------------------------------------------- packed rows */

/* Where the chunk's rows begin among rows that are stride apart, with columns numbers a head. */
static int64_t place(const Chunk *c, int64_t stride, int64_t columns)
{
    return c->row * stride + c->head * columns;
}

/* a = phi(q) */
static void pack_queries(const Pass *pass, const Chunk *c)
{
    const Attention *x = pass->x;
    pack_mapped(pass->scan->features, c->a, x->query + place(c, x->query_stride, x->D),
                c->step * x->query_stride, c->count, x->D, pass->plan.D);
}

static void zero_keys_left_out(const Chunk *c, Real *rows, int64_t padded)
{
    zero_rows(rows, c->first_key, padded);
    zero_rows(rows + c->end_key * padded, c->count - c->end_key, padded);
}

/* b = phi(k), v; and 0 where keys do not count */
static void pack_keys(const Pass *pass, const Chunk *c)
{
    const Attention *x = pass->x;
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

/* ghat_i = g_i / den_i */
static void pack_upstream(const Pass *pass, const Chunk *c)
{
    const Attention *x = pass->x;
    const int64_t M = pass->plan.M, stride = x->H * x->M;
    pack(c->g, pass->dout + place(c, stride, x->M), c->step * stride, c->count, x->M, M);
    for (int64_t i = 0; i < c->count; i++)
        multiply_row(c->g + i * M, 1 / pass->den[(c->row + i * c->step) * x->H + c->head], M);
}

/* delta_i = -ghat_i.out_i */
static void find_delta(const Pass *pass, const Chunk *c)
{
    const Attention *x = pass->x;
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

/* For each position in turn  T <- T + y w^T,  o <- o + T^T x */
static void scan(const Pass *pass, const Chunk *c, const Real *x, const Real *y, const Real *w,
                 Real *o, Real *T, int64_t Y, int64_t W)
{
    if (pass->plan.products)
        scan_by_products(x, y, w, o, T, c->count, Y, W, c->first, c->last, c->memory);
    else
        scan_by_position(x, y, w, o, T, c->count, Y, W);
}

/* --------------------------------------------------------------------------------------- states */

/* state [D, M + 1] as the kernels hold it, and back */
static void unpack_state(State to, const Real *state, const Pass *pass, bool transposed)
{
    const Attention *x = pass->x;
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
    const Attention *x = pass->x;
    for (int64_t d = 0; d < x->D; d++, to.data += x->M + 1) {
        for (int64_t m = 0; m < x->M; m++)
            contribute(&to.data[m], to.accumulate, from.matrix[d * pass->plan.M + m]);
        contribute(&to.data[x->M], to.accumulate, from.vector[d]);
    }
}

/* Where the state of a head of the item's sequence lies in [B, H, D, M + 1]. */
static int64_t state_place(const Pass *pass, const Item *item, int64_t head)
{
    const Attention *x = pass->x;
    return (item->sequence * x->H + head) * x->D * (x->M + 1);
}

/* Where that of a segment's border lies in [borders, H, state]: the segments of a sequence are those
 * of its length rounded up, so that each sequence wants one more than its share of all positions. */
static int64_t border_place(const Pass *pass, const Item *item, int64_t segment, int64_t head)
{
    const Plan *p = &pass->plan;
    const int64_t first = item->start / p->segment + item->sequence;
    return ((first + segment) * pass->x->H + head) * p->state;
}

/* S~ where a segment begins */
static void load_begin(const Pass *pass, const Item *item, int64_t segment, int64_t head)
{
    const State S = chunk_of(pass, item, head).S;
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

/* R~ where a segment ends, and transposed */
static void load_end(const Pass *pass, const Item *item, int64_t segment, int64_t head)
{
    const Plan *p = &pass->plan;
    const Chunk c = chunk_of(pass, item, head);
    const size_t bytes = (size_t)p->state * sizeof(Real);
    if (segment + 1 < item->segments)
        memcpy(c.R.matrix, pass->ends + border_place(pass, item, segment, head), bytes);
    else if (pass->dfinal_state)
        unpack_state(c.R, pass->dfinal_state + state_place(pass, item, head), pass, false);
    else
        memset(c.R.matrix, 0, bytes);
    transpose(c.R_transposed.matrix, c.R.matrix, p->D, p->M);
}

/* ----------------------------------------------------------------------- the states at the borders */

/* z <- z + b_i     S <- S + b_i v_i^T */
static void sum_keys(const Pass *pass, const Chunk *c)
{
    const int64_t D = pass->plan.D, M = pass->plan.M;
    pack_keys(pass, c);
    for (int64_t i = 0; i < c->count; i++)
        add_multiple(c->S.vector, 1, c->b + i * D, D);
    if (pass->backward)
        add_outer(c->S.matrix, c->v, c->b, c->count, M, D);
    else
        add_outer(c->S.matrix, c->b, c->v, c->count, D, M);
}

/* r <- r + delta_i a_i     R <- R + a_i ghat_i^T */
static void sum_queries(const Pass *pass, const Chunk *c)
{
    const int64_t D = pass->plan.D, M = pass->plan.M;
    pack_queries(pass, c);
    pack_upstream(pass, c);
    find_delta(pass, c);
    for (int64_t i = 0; i < c->count; i++)
        add_multiple(c->R.vector, c->delta[i * c->step], c->a + i * D, D);
    add_outer(c->R.matrix, c->a, c->g, c->count, D, M);
}

/* The segments' begins, from the item's own begin or, but for a sequence's first segment, from 0. */
static void find_begins(const Pass *pass, const Item *item)
{
    const size_t bytes = (size_t)pass->plan.state * sizeof(Real);
    for (int64_t head = item->first_head; head < item->end_head; head++) {
        if (item->first_segment == 0)
            load_begin(pass, item, 0, head);
        else
            memset(chunk_of(pass, item, head).S.matrix, 0, bytes);
    }
    for (int64_t s = item->first_segment; s < item->end_segment && s + 1 < item->segments; s++) {
        sweep(pass, item, s, 1, true, sum_keys);
        for (int64_t head = item->first_head; head < item->end_head; head++)
            memcpy(pass->begins + border_place(pass, item, s + 1, head),
                   chunk_of(pass, item, head).S.matrix, bytes);
    }
}

/* The end of the segment before, from the end of the item's or, but for the last segment, from 0. */
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
            memset(chunk_of(pass, item, head).R.matrix, 0, bytes);
    }
    sweep(pass, item, s, -1, true, sum_queries);
    for (int64_t head = item->first_head; head < item->end_head; head++)
        memcpy(pass->ends + border_place(pass, item, s - 1, head),
               chunk_of(pass, item, head).R.matrix, bytes);
}

/* What was summed over each segment alone <- over all before it, or after it. */
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
    run(pass, find_begins);
    if (!pass->plan.parallel)
        return;
    if (pass->ends)
        run(pass, find_end);
    run(pass, add_up);
}

/* ----------------------------------------------------------------------------------------- forward */

/* z_i = z_{i-1} + b_i     den_i = a_i.z_i + eps     out_i = num_i / den_i */
static void find_out(const Pass *pass, const Chunk *c)
{
    const Attention *x = pass->x;
    const int64_t D = pass->plan.D, M = pass->plan.M;
    pack_queries(pass, c);
    pack_keys(pass, c);
    zero_rows(c->o, c->count, M);
    scan(pass, c, c->a, c->b, c->v, c->o, c->S.matrix, D, M);
    for (int64_t i = 0; i < c->count; i++) {
        add_multiple(c->S.vector, 1, c->b + i * D, D);
        const Real den = dot(c->a + i * D, c->S.vector, D) + pass->scan->eps;
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
        sweep(pass, item, s, 1, s + 1 < item->end_segment || pass->final_state, find_out);
    if (!pass->final_state || item->end_segment < item->segments)
        return;
    for (int64_t head = item->first_head; head < item->end_head; head++)
        contribute_state((Gradient){ pass->final_state + state_place(pass, item, head), false },
                         chunk_of(pass, item, head).S, pass);
}

/* ---------------------------------------------------------------------------------------- backward */

/* da_i = delta_i z_i + S_i ghat_i */
static void find_dquery(const Pass *pass, const Chunk *c)
{
    const Attention *x = pass->x;
    const int64_t D = pass->plan.D, M = pass->plan.M;
    pack_upstream(pass, c);
    find_delta(pass, c);
    if (!pass->d.x.query.data)
        return;
    pack_queries(pass, c);
    pack_keys(pass, c);
    for (int64_t i = 0; i < c->count; i++)
        for (int64_t d = 0; d < D; d += LANES) {
            *at_vector(c->S.vector + d) += vector(c->b + i * D + d);
            *at_vector(c->da + i * D + d) = c->delta[i] * vector(c->S.vector + d);
        }
    scan(pass, c, c->g, c->v, c->b, c->da, c->S.matrix, M, D);
    through_map(pass->scan->features, c->da, c->a, c->count * D);
    unpack_results(c, pass->d.x.query, c->da, x->query_stride, x->D, D);
}

/* db_j = r_j + R_j v_j     dv_j = R_j^T b_j     where r_j = sum_{i>=j} delta_i a_i */
static void find_dkey_dvalue(const Pass *pass, const Chunk *c)
{
    const Attention *x = pass->x;
    const int64_t D = pass->plan.D, M = pass->plan.M;
    pack_queries(pass, c);
    pack_keys(pass, c);
    pack_upstream(pass, c);
    Real *db = c->da, *dv = c->o;
    for (int64_t i = 0; i < c->count; i++)
        for (int64_t d = 0; d < D; d += LANES) {
            *at_vector(c->R.vector + d) += c->delta[-i] * vector(c->a + i * D + d);
            *at_vector(db + i * D + d) = vector(c->R.vector + d);
        }
    if (pass->d.x.key.data) {
        scan(pass, c, c->v, c->g, c->a, db, c->R_transposed.matrix, M, D);
        through_map(pass->scan->features, db, c->b, c->count * D);
        zero_keys_left_out(c, db, D);
        unpack_results(c, pass->d.x.key, db, x->key_stride, x->D, D);
    }
    if (pass->d.x.value.data || pass->d.state.data) {
        zero_rows(dv, c->count, M);
        scan(pass, c, c->b, c->a, c->g, dv, c->R.matrix, D, M);
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
        sweep(pass, item, s, 1, false, find_dquery);
        if (back)
            sweep(pass, item, s, -1, s > item->first_segment || d->state.data, find_dkey_dvalue);
    }
    if (!d->state.data || item->first_segment > 0)
        return;
    for (int64_t head = item->first_head; head < item->end_head; head++)
        contribute_state(
            (Gradient){ d->state.data + state_place(pass, item, head), d->state.accumulate },
            chunk_of(pass, item, head).R, pass);
}

/* ----------------------------------------------------------------------------------------- kernels */

static int64_t border_states(const Plan *p, const Attention *x)
{
    return p->segments > 1 ? p->borders * x->H * p->state : 0;
}

int64_t causal_linear_attention_scratch_cpu(const LinearScan *s, bool backward)
{
    const Plan p = make_plan(s, backward);
    const int64_t kinds = backward && p.parallel ? 2 : 1;
    return p.threads * p.work + kinds * border_states(&p, &s->x);
}

void causal_linear_attention_forward_cpu(Real *out, Real *den, Real *final_state, Real *scratch,
                                         const LinearScan *s)
{
    Pass pass = {
        .scan = s,
        .x = &s->x,
        .plan = make_plan(s, false),
        .new_out = out,
        .new_den = den,
        .final_state = final_state,
        .scratch = scratch,
    };
    pass.begins = scratch + pass.plan.threads * pass.plan.work;
    find_borders(&pass);
    run(&pass, forward_item);
}

void causal_linear_attention_backward_cpu(LinearScanGradient d, const Real *dout,
                                          const Real *dfinal_state, const Real *out,
                                          const Real *den, Real *scratch, const LinearScan *s)
{
    Pass pass = {
        .scan = s,
        .x = &s->x,
        .plan = make_plan(s, true),
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
    run(&pass, backward_item);
}
