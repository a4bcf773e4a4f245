/* The plan of linear attention on the CPU: the form and segments. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_PLAN_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_PLAN_CPU_H

#include "ops/attention/shared/arguments.h"
#include "ops/cpu/attention/linear/scan.h"
#include "ops/cpu/attention/linear/tuned.h"
#include "tensor/internal.h"

enum {
    CHUNK = 16, /* positions per chunk of the recurrent form */
    GROUP = 8,  /* maximum number of heads per item of work */
    SEGMENTS = 16,
    MIN_SEGMENT = 128,
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

/* The form and the positions per chunk. Where no form is given sizes choose it and, unless the
 * device is repeatable, the threads: with fewer heads than threads the chunk-parallel form, which
 * takes one thread 1.1 to 1.6 times as long as the recurrent one. */
static AttentionForm choose_form(ScanPlan *p, int64_t length)
{
    const AttentionInputs *x = p->x;
    const Tuned tuned = tuned_for(maximum(p->D, p->M));
    AttentionForm form = p->causal ? p->options->form : FORM_RECURRENT;
    const bool few_heads = x->B * x->H < p->threads && !device_is_repeatable(device_current());
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

/* The chunk-parallel form has SEGMENTS of all heads, but of at least MIN_SEGMENT positions each: a
 * number that does not depend on the threads, since it decides the order of sums. The backward
 * pass of the other forms has segments of 64 D positions where the states at their boundaries,
 * [D, M] each, take less memory than dden of the whole sequence. With a decay, dl's sum restarts
 * every 32 D positions: the scan for da stores the states there, and dden of the whole sequence. */
static void choose_segments(ScanPlan *p, AttentionForm form, int64_t length)
{
    const AttentionInputs *x = p->x;
    p->segment = maximum(length, 1);
    p->parallel = form == FORM_CHUNK_PARALLEL;
    if (p->parallel) {
        const int64_t wanted = maximum(SEGMENTS / (x->B * x->H), 2);
        p->segment = maximum((length + wanted - 1) / wanted, MIN_SEGMENT);
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

#endif
