/* The plan of linear attention on the CPU: the form, and which thread processes which heads and
 * segments in which buffers. An item of work is a group of neighboring heads of one sequence,
 * whose rows are contiguous. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_PLAN_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_PLAN_CPU_H

#include "ops/cpu/shared/storage.h"
#include "ops/cpu/attention/linear/scan.h"
#include "ops/cpu/attention/linear/tuned.h"
#include "ops/attention/shared/arguments.h"

enum {
    CHUNK = 16, /* positions per chunk of the recurrent form */
    GROUP = 8,  /* maximum number of heads per item of work */
};

/* A pass over tensors [B, N, H, M] and den [B, N, H]. Query, key, value, out and their gradients
 * have the dtype `type`; den and the states are Real. */
typedef struct ScanPlan {
    int type;
    const LinearScan *options;
    const AttentionInputs *x;
    bool causal, backward;
    int threads;
    int64_t D, M;          /* padded */
    int64_t group, groups; /* heads per item of work; groups per sequence */
    int64_t rows;          /* positions per chunk */
    Method method;         /* of scanning a chunk */
    int64_t segment;       /* positions per segment */
    int64_t segments;      /* segments of the longest sequence */
    bool parallel;         /* segments of a sequence are processed in parallel */
    bool queries_first;    /* backward: dq of all segments, then dk and dv of all segments */
    int64_t state;         /* elements of a state [D, M] with its last column [D] */
    int64_t boundaries;    /* elements of the prefix states at all segment boundaries */
    int64_t buffer;        /* elements of a thread's buffers */
    Real *buffers;         /* of all threads */
    Real *dl;              /* [B, N, H] in a backward pass with a decay: dl_i - dl_{i+1} */
    Real *prefix, *suffix; /* [boundaries]: S~ (transposed for backward) before each segment of each
                            * head, and R~ after it */
} ScanPlan;

/* ---------------------------------------------------------------------------- form and segments */

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
static AttentionForm choose_form(ScanPlan *p, int64_t length)
{
    const AttentionInputs *x = p->x;
    const Tuned tuned = tuned_for(maximum(p->D, p->M));
    AttentionForm form = p->causal ? p->options->form : FORM_RECURRENT;
    const bool few_heads = x->B * x->H < p->threads;
    if (!form)
        form = length <= tuned.quadratic                   ? FORM_QUADRATIC
               : few_heads && length >= tuned.min_parallel ? FORM_CHUNK_PARALLEL
                                                           : FORM_RECURRENT;
    int64_t rows = p->options->chunk;
    if (!rows)
        rows = form == FORM_CHUNKED ? tuned.chunk : CHUNK;
    p->rows = maximum(form == FORM_QUADRATIC ? length : minimum(rows, length), 1);
    p->method = form == FORM_CHUNKED || form == FORM_QUADRATIC ? BY_PRODUCTS : BY_POSITION;
    return form;
}

/* The chunk-parallel form has enough segments to keep all threads busy to the end. The backward
 * pass of the other forms has segments of 64 D positions where the states at their boundaries,
 * [D, M] each, take less memory than dden of the whole sequence. With a decay, dl's sum restarts
 * every 32 D positions: the scan for da stores the states there, and dden of the whole sequence. */
static void choose_segments(ScanPlan *p, AttentionForm form, int64_t length)
{
    const AttentionInputs *x = p->x;
    p->segment = maximum(length, 1);
    p->parallel = form == FORM_CHUNK_PARALLEL;
    if (p->parallel) {
        const int64_t wanted = maximum(4 * p->threads / (x->B * x->H), 2);
        p->segment = maximum((length + wanted - 1) / wanted, 1);
    } else if (p->causal && p->backward && form != FORM_QUADRATIC) {
        p->queries_first = p->options->log_decay;
        if (p->queries_first || p->M < 64)
            p->segment = minimum(p->segment, (p->queries_first ? 32 : 64) * p->D);
    }
    p->segment = round_up(p->segment, p->rows);
    p->segments = maximum((length + p->segment - 1) / p->segment, 1);
    const int64_t per_head = (x->offsets ? x->N : x->B * x->N) / p->segment + x->B;
    p->boundaries = p->segments > 1 ? per_head * x->H * p->state : 0;
}

/* --------------------------------------------------------------------------------------- memory */

/* With a decay a head's state T is stored as e^(-c) T (decay.h). */
typedef struct ScaledState {
    double c;
    Real next; /* the log decay before the next row */
} ScaledState;

/* A thread's buffers: rows of a chunk, and states of all heads of an item. */
typedef struct ScanBuffers {
    Matrix a, b, v;      /* phi(q), phi(k), v~ = [v, 1] */
    Matrix dnum;         /* dnum~ = [dnum, dden] */
    Matrix result;       /* of a scan */
    Real *workspace;     /* of a scan */
    Real *S, *R;         /* S~ (transposed for backward) and R~ */
    Real *R_t;           /* R^T, which shares r with R~ */
    Real *earlier;       /* sums of earlier blocks, in the memory of R^T */
    Real *dden;          /* [group, dden_span]: saved from the scan for da to that for db */
    Real *log_decay;     /* [rows + 1] with a decay */
    Real *lower, *raise; /* [rows]: e^(-c_i) and e^(c_i) of decay.h */
    Real *dots;          /* [rows] */
    double *sums;        /* [rows]: c_i */
    DecayPart *parts;    /* [rows + 1] */
    ScaledState *scaled; /* [group] */
} ScanBuffers;

/* Positions of which dden is saved */
static int64_t dden_span(const ScanPlan *p)
{
    return p->queries_first ? p->segments * p->segment : p->segment;
}

static Matrix allocate_rows(Real *memory, int64_t *used, int64_t rows, int64_t columns,
                            bool with_last)
{
    Matrix m = { .data = allocate(memory, used, rows * columns), .columns = columns };
    if (with_last)
        m.last = allocate(memory, used, rows);
    return m;
}

/* Memory for n elements of a type that is no Real. */
#define ALLOCATE_AS(type, memory, used, n)                                                         \
    ((type *)(void *)allocate(memory, used, (n) * (int64_t)(sizeof(type) / sizeof(Real))))

/* The buffers in a thread's memory, or NULL; used: their size. */
static ScanBuffers allocate_buffers(const ScanPlan *p, Real *memory, int64_t *used)
{
    const bool decays = p->options->log_decay, last = !p->options->unnormalized;
    const int64_t rows = round_up(p->rows, UNIT) + (decays ? UNIT : 0); /* a part of a chunk is
                                                                         * rounded up too */
    const int64_t widest = maximum(p->D, p->M);
    ScanBuffers m = { 0 };
    *used = 0;
    m.a = allocate_rows(memory, used, rows, p->D, false);
    m.b = allocate_rows(memory, used, rows, p->D, false);
    m.v = allocate_rows(memory, used, rows, p->M, last);
    m.result = allocate_rows(memory, used, rows, widest, last);
    m.workspace = allocate(memory, used, scan_workspace(rows, widest, p->method));
    m.S = allocate(memory, used, p->group * p->state);
    if (decays) {
        m.log_decay = allocate(memory, used, rows);
        m.lower = allocate(memory, used, rows);
        m.raise = allocate(memory, used, rows);
        m.dots = allocate(memory, used, rows);
        m.sums = ALLOCATE_AS(double, memory, used, rows);
        m.parts = ALLOCATE_AS(DecayPart, memory, used, rows + 1);
        m.scaled = ALLOCATE_AS(ScaledState, memory, used, p->group);
    }
    if (p->backward || !p->causal)
        m.R_t = m.earlier = allocate(memory, used, p->group * p->state);
    if (!p->backward)
        return m;
    m.dnum = allocate_rows(memory, used, rows, p->M, last);
    m.R = allocate(memory, used, p->group * p->state);
    if (p->causal)
        m.dden = allocate(memory, used, p->group * dden_span(p));
    return m;
}

/* The plan with its memory, until free_plan. */
static ScanPlan plan_scan(TensorType type, const LinearScan *options, bool causal, bool backward)
{
    const AttentionInputs *x = &options->x;
    const int64_t heads = x->B * x->H, length = max_length(x);
    ScanPlan p = {
        .type = (int)type, .options = options, .x = x, .causal = causal, .backward = backward
    };
    p.threads = device_threads();
    p.D = round_up(x->D, UNIT);
    p.M = round_up(x->M, UNIT);
    p.state = p.D * p.M + p.D;
    p.group = heads < p.threads ? 1 : minimum(minimum(heads / p.threads, x->H), GROUP);
    p.groups = (x->H + p.group - 1) / p.group;
    choose_segments(&p, choose_form(&p, length), length);
    allocate_buffers(&p, NULL, &p.buffer);
    const int64_t buffers = p.threads * p.buffer;
    const int64_t boundaries = (backward && p.parallel ? 2 : 1) * p.boundaries;
    const int64_t positions = (x->offsets ? 1 : x->B) * x->N * x->H;
    p.buffers =
        device_workspace(buffers + boundaries + (backward && options->log_decay ? positions : 0));
    p.prefix = p.buffers + buffers;
    p.suffix = p.prefix + p.boundaries;
    p.dl = p.prefix + boundaries;
    return p;
}

static void free_plan(const ScanPlan *p)
{
    device_workspace_free(p->buffers);
}

/* ---------------------------------------------------------------------------------------- items */

typedef struct ScanItem {
    const ScanPlan *plan;
    ScanBuffers buffers; /* the thread's */
    int64_t sequence;
    int64_t query_row, key_row;                               /* the sequence's first rows */
    int64_t length, keys;                                     /* its positions; its unmasked keys */
    int64_t segments;                                         /* of the sequence */
    int64_t first_segment, end_segment, first_head, end_head; /* of the item */
} ScanItem;

static int64_t item_count(const ScanPlan *p)
{
    return p->x->B * p->groups * (p->parallel ? p->segments : 1);
}

static ScanItem item_of(const ScanPlan *p, int64_t index)
{
    const AttentionInputs *x = p->x;
    const int64_t parts = p->parallel ? p->segments : 1;
    ScanItem item = { .plan = p, .sequence = index / (parts * p->groups) };
    int64_t used;
    item.buffers = allocate_buffers(p, p->buffers + omp_get_thread_num() * p->buffer, &used);
    item.query_row = sequence_start(x, item.sequence);
    item.key_row = p->causal ? item.query_row : item.sequence * x->keys;
    item.length = sequence_length(x, item.sequence);
    item.keys = x->key_lengths ? x->key_lengths[item.sequence] : p->causal ? item.length : x->keys;
    item.segments = maximum((item.length + p->segment - 1) / p->segment, 1);
    item.first_segment = index / p->groups % parts;
    item.end_segment = p->parallel ? minimum(item.first_segment + 1, item.segments) : item.segments;
    item.first_head = index % p->groups * p->group;
    item.end_head = minimum(item.first_head + p->group, x->H);
    return item;
}

static int threads_of_plan(const ScanPlan *p)
{
    const int64_t rows = (p->x->offsets ? 1 : p->x->B) * p->x->N * p->x->H;
    return device_threads_for(rows, (p->backward ? 0.2 : 0.05) * (double)(p->D * p->M));
}

/* EACH_ITEM(item, plan) statement: for all items of work, divided among the threads. Scheduled
 * dynamically although all items cost the same: with a static schedule, two threads processed
 * neighboring heads in lockstep, and took up to 1.8 times as long. */
#define EACH_ITEM(item, plan)                                                                      \
    PRAGMA(omp parallel for schedule(dynamic) num_threads(threads_of_plan(plan)))                  \
    for (int64_t index = 0; index < item_count(plan); index++)                                     \
        for (ScanItem item = item_of(plan, index); item.first_segment < item.end_segment;          \
             item.first_segment = item.end_segment)

#endif
