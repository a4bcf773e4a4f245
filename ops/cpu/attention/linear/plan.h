/* The plan of linear attention on the CPU: which thread processes which heads, segments and chunks,
 * in which buffers and with which states. An item of work is a group of neighbouring heads of one
 * sequence, whose rows are contiguous; a thread processes it in chunks of positions, each one for
 * every head. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_PLAN_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_PLAN_CPU_H

#include "ops/cpu/shared/storage.h"
#include "ops/cpu/attention/linear/scan.h"
#include "ops/attention/shared/arguments.h"

enum {
    CHUNK = 16, /* positions per chunk of the recurrent form */
    GROUP = 8,  /* maximum number of heads per item of work */
};

/* The table by which FORM_BEST chooses a form: the first row whose `columns` is at least D and M,
 * else the last. `make tune` measures it over a forward and a backward pass, quadratic and chunk
 * with one thread. These values are from 2 threads and vectors of 512 bits. */
static const struct {
    int columns;
    int quadratic;    /* the quadratic form up to this length */
    int chunk;        /* positions per chunk of the chunked form */
    int min_parallel; /* the chunk-parallel form from this length on, if there are fewer heads than
                       * threads */
} tuned[] = {
    { 16, 0, 16, 2048 },   { 32, 0, 16, 512 },     { 64, 32, 16, 128 },
    { 128, 128, 16, 512 }, { 256, 256, 16, 1024 },
};

/* -------------------------------------------------------------------------------- pass and plan */

/* The arguments of a pass, with tensors [B, N, H, M] and den [B, N, H], and its plan. Query, key,
 * value, out and their gradients have the dtype `type`; den and the states are Real. */
typedef struct Pass {
    int type;
    const LinearScan *options;
    const AttentionInputs *x;
    bool causal, backward;
    Real *new_out, *new_den, *final_state; /* written by the forward pass */
    const Real *out, *den, *dout;          /* read by the backward pass */
    const Real *dfinal_state;
    LinearScanGradient d;

    int threads;
    int64_t D, M;          /* padded */
    int64_t group, groups; /* heads per item of work; groups per sequence */
    int64_t rows;          /* positions per chunk */
    Method method;         /* of scanning a chunk */
    int64_t segment;       /* positions per segment */
    int64_t segments;      /* segments of the longest sequence */
    bool parallel;         /* segments of a sequence are processed in parallel */
    int64_t state;         /* elements of a state [D, M] with its last column [D] */
    int64_t boundaries;    /* elements of the prefix states at all segment boundaries */
    Real *buffers;         /* per thread */
    Real *prefix, *suffix; /* [boundaries]: S~ (transposed for backward) before each segment of each
                            * head, and R~ after it */
} Pass;

/* An item of work, its current chunk, and the thread's buffers. */
typedef struct Work {
    const Pass *pass;
    /* The item. */
    int64_t sequence;
    int64_t query_row, key_row;                               /* the sequence's first rows */
    int64_t length, keys;                                     /* its positions; its unmasked keys */
    int64_t segments;                                         /* of the sequence */
    int64_t first_segment, end_segment, first_head, end_head; /* of the item */
    /* The chunk: scan.count positions of [begin, end): position, position + step, ...; step is 1
     * or, for scan_reverse, -1. */
    int64_t begin, end, step, position, head;
    int64_t first_key, end_key; /* the range of the chunk's positions whose keys are unmasked */
    bool state_after;           /* the state after `end` is needed */
    Scan scan;
    /* The chunk's packed rows. */
    Matrix a, b, v;         /* phi(q), phi(k), v~ = [v, 1] */
    Matrix num, dnum;       /* num~ = [num, den - eps], dnum~ = [dnum, dden] */
    Matrix da, db, out, dv; /* in the memory of da and num */
    /* The head's states; forward S, backward the others. */
    Matrix S, S_t, R, R_t;
    Real *states[3]; /* of all heads of the item */
    Real *dden;      /* [group, segment]: saved from the scan for da to that for db */
} Work;

static Matrix allocate_rows(Real *memory, int64_t *used, int64_t rows, int64_t columns,
                            bool with_last)
{
    Matrix m = { .data = allocate(memory, used, rows * columns), .columns = columns };
    if (with_last)
        m.last = allocate(memory, used, rows);
    return m;
}

/* Assigns the buffers in a thread's memory, or NULL; returns their size. */
static int64_t allocate_buffers(Work *w, const Pass *p, Real *memory)
{
    const int64_t rows = round_up(p->rows, UNIT);
    int64_t used = 0;
    w->a = allocate_rows(memory, &used, rows, p->D, false);
    w->b = allocate_rows(memory, &used, rows, p->D, false);
    w->v = allocate_rows(memory, &used, rows, p->M, true);
    w->num = w->out = w->dv = allocate_rows(memory, &used, rows, p->M, true);
    w->out.last = w->dv.last = NULL;
    w->scan.workspace =
        allocate(memory, &used, scan_workspace(rows, maximum(p->D, p->M), p->method));
    w->states[0] = allocate(memory, &used, p->group * p->state);
    if (p->backward || !p->causal)
        w->states[2] = allocate(memory, &used, p->group * p->state);
    if (!p->backward)
        return used;
    w->dnum = allocate_rows(memory, &used, rows, p->M, true);
    w->da = w->db = allocate_rows(memory, &used, rows, p->D, false);
    w->states[1] = allocate(memory, &used, p->group * p->state);
    if (p->causal)
        w->dden = allocate(memory, &used, p->group * p->segment);
    return used;
}

static int64_t buffer_size(const Pass *p)
{
    return allocate_buffers(&(Work){ .pass = p }, p, NULL);
}

/* First position of sequence s among all positions. */
static int64_t sequence_start(const AttentionInputs *x, int64_t s)
{
    return x->offsets ? x->offsets[s] : s * x->N;
}

static int64_t sequence_length(const AttentionInputs *x, int64_t s)
{
    return sequence_start(x, s + 1) - sequence_start(x, s);
}

static int64_t max_length(const AttentionInputs *x)
{
    int64_t length = x->offsets ? 0 : x->N;
    for (int64_t s = 0; x->offsets && s < x->B; s++)
        length = maximum(length, sequence_length(x, s));
    return length;
}

/* The form, chosen by sizes and threads if it is not given, and the positions per chunk. */
static AttentionForm choose_form(Pass *p, int64_t length)
{
    const AttentionInputs *x = p->x;
    int row = 0;
    while (row < (int)(sizeof tuned / sizeof *tuned) - 1 &&
           tuned[row].columns < maximum(p->D, p->M))
        row++;
    AttentionForm form = p->causal ? p->options->form : FORM_RECURRENT;
    const bool few_heads = x->B * x->H < p->threads;
    if (!form)
        form = length <= tuned[row].quadratic                   ? FORM_QUADRATIC
               : few_heads && length >= tuned[row].min_parallel ? FORM_CHUNK_PARALLEL
                                                                : FORM_RECURRENT;
    int64_t rows = p->options->chunk;
    if (!rows)
        rows = form == FORM_CHUNKED ? tuned[row].chunk : CHUNK;
    p->rows = maximum(form == FORM_QUADRATIC ? length : minimum(rows, length), 1);
    p->method = form == FORM_CHUNKED || form == FORM_QUADRATIC ? BY_PRODUCTS : BY_POSITION;
    return form;
}

/* The chunk-parallel form has enough segments to keep all threads busy to the end. The backward
 * pass of the other forms has segments of 64 D positions where the states at their boundaries,
 * [D, M] each, take less memory than dden of the whole sequence. */
static void choose_segments(Pass *p, AttentionForm form, int64_t length)
{
    const AttentionInputs *x = p->x;
    p->segment = maximum(length, 1);
    p->parallel = form == FORM_CHUNK_PARALLEL;
    if (p->parallel) {
        const int64_t wanted = maximum(4 * p->threads / (x->B * x->H), 2);
        p->segment = maximum((length + wanted - 1) / wanted, 1);
    } else if (p->causal && p->backward && form != FORM_QUADRATIC && p->M < 64) {
        p->segment = minimum(p->segment, 64 * p->D);
    }
    p->segment = round_up(p->segment, p->rows);
    p->segments = maximum((length + p->segment - 1) / p->segment, 1);
    const int64_t per_head = (x->offsets ? x->N : x->B * x->N) / p->segment + x->B;
    p->boundaries = p->segments > 1 ? per_head * x->H * p->state : 0;
}

static Pass plan_pass(TensorType type, const LinearScan *options, bool causal, bool backward)
{
    const AttentionInputs *x = &options->x;
    const int64_t heads = x->B * x->H, length = max_length(x);
    Pass p = {
        .type = (int)type, .options = options, .x = x, .causal = causal, .backward = backward
    };
    p.threads = device_threads();
    p.D = round_up(x->D, UNIT);
    p.M = round_up(x->M, UNIT);
    p.state = p.D * p.M + p.D;
    p.group = heads < p.threads ? 1 : minimum(minimum(heads / p.threads, x->H), GROUP);
    p.groups = (x->H + p.group - 1) / p.group;
    choose_segments(&p, choose_form(&p, length), length);
    return p;
}

/* Allocates the pass's buffers; returns the workspace to free. */
static Real *assign_scratch(Pass *p)
{
    Real *scratch = device_workspace(p->threads * buffer_size(p) +
                                     (p->backward && p->parallel ? 2 : 1) * p->boundaries);
    p->buffers = scratch;
    p->prefix = scratch + p->threads * buffer_size(p);
    p->suffix = p->prefix + p->boundaries;
    return scratch;
}

static Work item_of(const Pass *p, int64_t index, Real *memory)
{
    const AttentionInputs *x = p->x;
    const int64_t parts = p->parallel ? p->segments : 1;
    Work w = { .pass = p, .sequence = index / (parts * p->groups) };
    allocate_buffers(&w, p, memory);
    for (int64_t i = 0; i < p->rows; i++)
        w.v.last[i] = 1;
    w.query_row = sequence_start(x, w.sequence);
    w.key_row = p->causal ? w.query_row : w.sequence * x->keys;
    w.length = sequence_length(x, w.sequence);
    w.keys = x->key_lengths ? x->key_lengths[w.sequence] : p->causal ? w.length : x->keys;
    w.segments = maximum((w.length + p->segment - 1) / p->segment, 1);
    w.first_segment = index / p->groups % parts;
    w.end_segment = p->parallel ? minimum(w.first_segment + 1, w.segments) : w.segments;
    w.first_head = index % p->groups * p->group;
    w.end_head = minimum(w.first_head + p->group, x->H);
    return w;
}

/* Scheduled dynamically although all items cost the same: with a static schedule, two threads
 * processed neighbouring heads in lockstep, and took up to 1.8 times as long. */
static void for_each_item(const Pass *p, void (*process)(Work *))
{
    const int64_t size = buffer_size(p);
    const int64_t items = p->x->B * p->groups * (p->parallel ? p->segments : 1);
    const int64_t rows = (p->x->offsets ? 1 : p->x->B) * p->x->N * p->x->H;
    const int threads = threads_for(rows, (p->backward ? 0.2 : 0.05) * (double)(p->D * p->M));
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t i = 0; i < items; i++) {
        Work w = item_of(p, i, p->buffers + omp_get_thread_num() * size);
        if (w.first_segment < w.end_segment)
            process(&w);
    }
}

/* ----------------------------------------------------------------------------- heads and chunks */

static void select_head(Work *w, int64_t head)
{
    const Pass *p = w->pass;
    const int64_t offset = (head - w->first_head) * p->state, matrix = p->D * p->M;
    w->head = head;
    Real *S = w->states[0] + offset;
    w->S = (Matrix){ S, S + matrix, p->M };
    w->S_t = (Matrix){ S, S + matrix, p->D };
    if (!p->backward)
        return;
    Real *R = w->states[1] + offset, *R_t = w->states[2] + offset;
    w->R = (Matrix){ R, R + matrix, p->M };
    w->R_t = (Matrix){ R_t, R + matrix, p->D }; /* they share r */
}

/* n clamped to [0, count] */
static int64_t clamp_count(int64_t n, int64_t count)
{
    return minimum(maximum(n, 0), count);
}

/* Moves to the chunk that starts `done` positions into [begin, end). */
static void select_chunk(Work *w, int64_t done)
{
    const Pass *p = w->pass;
    const int64_t left = w->end - w->begin - done, count = clamp_count(left, p->rows);
    const bool forward = w->step > 0;
    const bool outer = forward ? w->begin == 0 : w->end == w->length;
    const Real *state = forward ? p->options->state : p->dfinal_state;
    w->position = forward ? w->begin + done : w->end - 1 - done;
    w->first_key = forward ? 0 : clamp_count(w->position + 1 - w->keys, count);
    w->end_key = forward ? clamp_count(w->keys - w->position, count) : count;
    w->scan.count = count;
    w->scan.method = p->method;
    w->scan.first = outer && done == 0 && !state;
    w->scan.last = !w->state_after && left <= p->rows;
}

/* The chunks of positions [begin, end), in this order or (step -1) in reverse; each one for every
 * head of the item. The last call leaves a chunk without positions. */
static void first_chunk(Work *w, int64_t begin, int64_t end, int64_t step, bool state_after)
{
    w->begin = begin;
    w->end = end;
    w->step = step;
    w->state_after = state_after;
    w->scan.next.count = 0;
    select_chunk(w, 0);
    select_head(w, w->first_head);
}

static void next_chunk(Work *w)
{
    if (w->head + 1 < w->end_head) {
        select_head(w, w->head + 1);
        return;
    }
    const int64_t done = w->step > 0 ? w->position - w->begin : w->end - 1 - w->position;
    select_chunk(w, done + w->scan.count);
    select_head(w, w->first_head);
}

static int64_t segment_start(const Work *w, int64_t segment)
{
    return minimum(segment * w->pass->segment, w->length);
}

/* --------------------------------------------------------------------------------------- states
 * An item's states, one per head, are contiguous, and so are its prefix states of a segment. */

static int64_t states_size(const Work *w)
{
    return (w->end_head - w->first_head) * w->pass->state;
}

static void copy_states(const Work *w, Real *to, const Real *from)
{
    memcpy(to, from, (size_t)states_size(w) * sizeof *to);
}

static void zero_states(const Work *w, Real *states)
{
    memset(states, 0, (size_t)states_size(w) * sizeof *states);
}

static void add_states(const Work *w, Real *to, const Real *from)
{
    for (int64_t i = 0; i < states_size(w); i += LANES)
        *at_vector(to + i) += vector(from + i);
}

/* The item's states at a segment, in prefix or suffix. The number of segments of each sequence is
 * rounded up, so a sequence reserves one more than its share of all positions. */
static Real *boundary(const Work *w, Real *states, int64_t segment)
{
    const Pass *p = w->pass;
    const int64_t first = w->query_row / p->segment + w->sequence;
    return states + ((first + segment) * p->x->H + w->first_head) * p->state;
}

/* The offset in [B, H, D, M + 1] of the item's first state. */
static int64_t first_state(const Work *w)
{
    const AttentionInputs *x = w->pass->x;
    return (w->sequence * x->H + w->first_head) * x->D * (x->M + 1);
}

/* to = state [B, H, D, M + 1], each one padded, its matrix transposed or not. */
static void unpack_states(const Work *w, Real *to, const Real *state, bool transposed)
{
    const Pass *p = w->pass;
    const int64_t M = p->x->M, row = transposed ? 1 : p->M, column = transposed ? p->D : 1;
    zero_states(w, to);
    state += first_state(w);
    for (int64_t head = w->first_head; head < w->end_head; head++, to += p->state)
        for (int64_t d = 0; d < p->x->D; d++, state += M + 1) {
            for (int64_t m = 0; m < M; m++)
                to[d * row + m * column] = state[m];
            to[p->D * p->M + d] = state[M];
        }
}

/* to [B, H, D, M + 1] <- the item's states */
static void contribute_states(const Work *w, Gradient to, const Real *from)
{
    const Pass *p = w->pass;
    const int64_t M = p->x->M;
    Real *row = to.data + first_state(w);
    for (int64_t head = w->first_head; head < w->end_head; head++, from += p->state)
        for (int64_t d = 0; d < p->x->D; d++, row += M + 1) {
            for (int64_t m = 0; m < M; m++)
                contribute(TENSOR_REAL, row, m, to.accumulate, from[d * p->M + m]);
            contribute(TENSOR_REAL, row, M, to.accumulate, from[p->D * p->M + d]);
        }
}

#endif
