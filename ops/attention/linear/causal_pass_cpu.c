#include "ops/attention/linear/causal_pass_cpu.h"
#include "ops/attention/linear/causal_scan_cpu.h"
#include "ops/attention/linear/tuned.h"

#include <omp.h>

/* Maximum number of heads per item of work. */
enum { GROUP = 8 };

/* ------------------------------------------------------------------------------------- the plan */

/* First position of sequence s among all positions. */
static int64_t sequence_start(const AttentionInputs *x, int64_t s)
{
    return x->offsets ? x->offsets[s] : s * x->N;
}

static int64_t sequence_length(const AttentionInputs *x, int64_t s)
{
    return sequence_start(x, s + 1) - sequence_start(x, s);
}

static int64_t longest_sequence(const AttentionInputs *x)
{
    int64_t longest = x->offsets ? 0 : x->N;
    for (int64_t s = 0; x->offsets && s < x->B; s++)
        longest = larger(longest, sequence_length(x, s));
    return longest;
}

static TunedSizes tuned_for(const Plan *p)
{
    const int most = (int)(sizeof tuned_sizes / sizeof *tuned_sizes) - 1;
    int i = 0;
    while (i < most && tuned_sizes[i].columns < larger(p->D, p->M))
        i++;
    return tuned_sizes[i];
}

static AttentionForm best_form(const Plan *p, int64_t heads, int64_t longest)
{
    const TunedSizes tuned = tuned_for(p);
    if (longest <= tuned.longest_quadratic)
        return FORM_QUADRATIC;
    return heads < p->threads && longest >= tuned.shortest_parallel ? FORM_CHUNK_PARALLEL
                                                                    : FORM_RECURRENT;
}

static void choose_rows(Plan *p, AttentionForm form, int64_t chunk, int64_t longest)
{
    p->products = form == FORM_QUADRATIC || form == FORM_CHUNKED;
    if (!chunk)
        chunk = form == FORM_CHUNKED ? tuned_for(p).chunk : CHUNK;
    p->rows = larger(form == FORM_QUADRATIC ? longest : smaller(chunk, longest), 1);
}

/* The chunk-parallel form has enough segments to keep all threads busy to the end. The backward
 * pass of the other forms has segments of 64 D positions where the states at their boundaries,
 * [D, M] each, take less memory than dden of the whole sequence. */
static void choose_segments(Plan *p, AttentionForm form, int64_t heads, int64_t longest,
                            bool backward)
{
    p->segment = larger(longest, 1);
    p->parallel = form == FORM_CHUNK_PARALLEL;
    if (p->parallel) {
        const int64_t wanted = larger(4 * p->threads / heads, 2);
        p->segment = larger((longest + wanted - 1) / wanted, 1);
    } else if (backward && form != FORM_QUADRATIC && p->M < 64) {
        p->segment = smaller(p->segment, 64 * p->D);
    }
    p->segment = rounded_up(p->segment, p->rows);
    p->segments = larger((longest + p->segment - 1) / p->segment, 1);
}

Plan pass_plan(const LinearScan *scan, bool backward)
{
    const AttentionInputs *x = &scan->x;
    const int64_t heads = x->B * x->H, longest = longest_sequence(x);
    Plan p = { .threads = device_threads(), .D = padded_size(x->D), .M = padded_size(x->M) };
    const AttentionForm form = scan->form ? scan->form : best_form(&p, heads, longest);
    p.group = heads < p.threads ? 1 : smaller(smaller(heads / p.threads, x->H), GROUP);
    p.groups = (x->H + p.group - 1) / p.group;
    choose_rows(&p, form, scan->chunk, longest);
    choose_segments(&p, form, heads, longest, backward);
    p.state = p.D * p.M + p.D;
    p.borders = (x->offsets ? x->N : x->B * x->N) / p.segment + x->B;
    p.work = 3 * padded_size(p.rows) * (p.D + p.M) + (backward ? 3 : 1) * p.group * p.state;
    if (p.products)
        p.work += scan_by_products_memory(p.rows, larger(p.D, p.M));
    if (backward)
        p.work += rounded_up(p.group * p.segment, UNIT);
    return p;
}

/* ----------------------------------------------------------------------------- sharing the work */

static Item item_at(const Pass *pass, int64_t index, Real *memory)
{
    const AttentionInputs *x = pass->x;
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

/* Scheduled dynamically although all items cost the same: with a static schedule, two threads
 * processed neighbouring heads in lockstep, and took up to 1.8 times as long. */
void pass_run(const Pass *pass, void (*work)(const Pass *, const Item *))
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

/* The item's memory: packed rows; one state per head, or three for the backward pass; dden; the
 * workspace of scan_by_products. */
static Chunk take_memory(const Pass *pass, const Item *item)
{
    const Plan *p = &pass->plan;
    const int64_t rows = padded_size(p->rows);
    Chunk c = { .a = item->memory };
    c.b = c.a + rows * p->D;
    c.da = c.b + rows * p->D;
    c.v = c.da + rows * p->D;
    c.g = c.v + rows * p->M;
    c.o = c.g + rows * p->M;
    c.states = c.o + rows * p->M;
    c.deltas = c.states + (pass->backward ? 3 : 1) * p->group * p->state;
    c.memory = c.deltas + (pass->backward ? rounded_up(p->group * p->segment, UNIT) : 0);
    return c;
}

static State state_at(const Plan *p, Real *memory, int64_t index)
{
    Real *matrix = memory + index * p->state;
    return (State){ matrix, matrix + p->D * p->M };
}

static void take_head(Chunk *c, const Pass *pass, const Item *item, int64_t head)
{
    const Plan *p = &pass->plan;
    const int64_t index = head - item->first_head;
    c->head = head;
    c->S = state_at(p, c->states, index);
    if (!pass->backward)
        return;
    c->R = state_at(p, c->states, p->group + index);
    c->R_transposed = state_at(p, c->states, 2 * p->group + index);
}

Chunk pass_chunk(const Pass *pass, const Item *item, int64_t head)
{
    Chunk c = take_memory(pass, item);
    take_head(&c, pass, item, head);
    return c;
}

/* n clamped to [0, count] */
static int64_t clamped(int64_t n, int64_t count)
{
    return smaller(larger(n, 0), count);
}

void pass_sweep(const Pass *pass, const Item *item, int64_t segment, int64_t direction,
                bool state_after, Step *step)
{
    const Plan *p = &pass->plan;
    const int64_t begin = segment * p->segment, end = smaller(begin + p->segment, item->length);
    const Real *state = direction > 0 ? pass->scan->state : pass->dfinal_state;
    const bool outer = segment == (direction > 0 ? 0 : item->segments - 1);
    Chunk c = take_memory(pass, item);
    c.step = direction;
    for (int64_t n = 0; n < end - begin; n += p->rows) {
        const int64_t position = direction > 0 ? begin + n : end - 1 - n;
        c.row = item->start + position;
        c.count = smaller(p->rows, end - begin - n);
        c.first_key = direction > 0 ? 0 : clamped(position + 1 - item->keys, c.count);
        c.end_key = direction > 0 ? clamped(item->keys - position, c.count) : c.count;
        c.first = outer && n == 0 && !state;
        c.last = !state_after && n + p->rows >= end - begin;
        for (int64_t head = item->first_head; head < item->end_head; head++) {
            take_head(&c, pass, item, head);
            c.delta = c.deltas + (head - item->first_head) * p->segment + position - begin;
            step(pass, &c);
        }
    }
}
