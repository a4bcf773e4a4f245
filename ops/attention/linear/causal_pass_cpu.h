/* Work partitioning of causal linear attention on the CPU: which thread processes which heads and
 * segments. See causal_cpu.c. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_CAUSAL_PASS_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_CAUSAL_PASS_CPU_H

#include "ops/attention/linear/tiles_cpu.h"

typedef struct Plan {
    int threads;
    int64_t group, groups; /* heads per item of work; groups per sequence */
    int64_t rows;          /* positions per chunk, packed at once */
    bool products;         /* chunks are scanned by matrix products */
    int64_t segment;       /* positions per segment */
    int64_t segments;      /* segments of the longest sequence */
    bool parallel;         /* segments of a sequence are processed in parallel */
    int64_t D, M;          /* padded */
    int64_t state, work;   /* elements: a state [D, M] with its vector [D]; memory per thread */
    int64_t borders;       /* upper bound on the segments of all sequences */
} Plan;

/* The arguments of a pass: tensors [B, N, H, M], and den [B, N, H]. */
typedef struct Pass {
    const LinearScan *scan;
    const AttentionInputs *x;
    Plan plan;
    Real *new_out, *new_den, *final_state; /* written by the forward pass */
    const Real *out, *den, *dout;          /* read by the backward pass */
    const Real *dfinal_state;
    LinearScanGradient d;
    bool backward;
    Real *scratch; /* [threads, work] */
    Real *begins;  /* [borders, H, state]: prefix states S~ of segments, transposed for backward */
    Real *ends;    /* likewise their suffix states R~ */
} Pass;

/* A state, [D, M] or transposed [M, D], and its vector, [D]. */
typedef struct State {
    Real *matrix, *vector;
} State;

/* Neighbouring heads of a sequence, some of its segments, and the thread's memory for them. */
typedef struct Item {
    int64_t sequence;
    int64_t start, length, keys; /* of the sequence: first position, positions, unmasked keys, */
    int64_t segments;            /* segments */
    int64_t first_segment, end_segment; /* the item's segments */
    int64_t first_head, end_head;
    Real *memory;
} Item;

/* Some positions of one head in scan order, and the thread's memory for them. The first position is
 * row `row` of the tensors, the next row + step; step is 1, or -1 for scan_reverse. */
typedef struct Chunk {
    int64_t row, step, count, head;
    int64_t first_key, end_key; /* the range of positions whose keys are unmasked */
    bool first, last;           /* the state before the chunk is 0; none is needed after it */
    Real *a, *b, *da;           /* [rows, D]: phi(q), phi(k), da or db */
    Real *v, *g, *o;            /* [rows, M]: v, dnum, num or dv */
    Real *delta;                /* dden of the first position; of the next at delta + step */
    State S, R, R_transposed;   /* S is transposed in the backward pass */
    Real *states, *deltas;      /* states and dden of the item's heads */
    Real *memory;               /* workspace of scan_by_products */
} Chunk;

typedef void Step(const Pass *pass, const Chunk *chunk);

/* The plan for the requested form, or for the best one by sizes and threads. */
Plan pass_plan(const LinearScan *scan, bool backward);

/* Processes all items, on all threads. */
void pass_run(const Pass *pass, void (*work)(const Pass *, const Item *));

/* Calls step for every chunk of every head of a segment, in the order of positions or (direction
 * -1) in reverse. state_after: the state after the segment is needed. */
void pass_sweep(const Pass *pass, const Item *item, int64_t segment, int64_t direction,
                bool state_after, Step *step);

/* A chunk without positions, to access the states of one of the item's heads. */
Chunk pass_chunk(const Pass *pass, const Item *item, int64_t head);

static inline int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t rounded_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

#endif
