/* Which thread processes which heads and segments of linear attention in which buffers. An item of
 * work is a group of neighboring heads of one sequence, whose rows are contiguous. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_ITEMS_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_ITEMS_CPU_H

#include "ops/cpu/attention/linear/buffers.h"

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
