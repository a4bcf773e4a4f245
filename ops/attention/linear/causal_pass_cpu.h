/* How the CPU's causal linear attention goes over all positions: what is worked at by whom, and in
 * which pieces. See causal_cpu.c. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_CAUSAL_PASS_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_CAUSAL_PASS_CPU_H

#include "ops/attention/linear/tiles_cpu.h"

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
    Real *begins;  /* [borders, H, state]: S~ where a segment begins, transposed for backward, */
    Real *ends;    /* and R~ where it ends */
} Pass;

/* A state, [D, M] or transposed [M, D], and its vector, [D]. */
typedef struct State {
    Real *matrix, *vector;
} State;

/* Neighbouring heads of a sequence, some segments of it, and a thread's memory for them. */
typedef struct Item {
    int64_t sequence;
    int64_t start, length, keys; /* its first position among all, positions, keys that count, */
    int64_t segments;            /* and segments, */
    int64_t first_segment, end_segment; /* of which these are the item's */
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
    Real *states, *deltas;      /* of the item's heads */
    Real *memory;               /* of scan_by_products */
} Chunk;

typedef void Step(const Pass *pass, const Chunk *chunk);

/* By the form asked for, or the best one for the sizes and threads. */
Plan pass_plan(const LinearScan *scan, bool backward);

/* Works at all items, on all threads. */
void pass_run(const Pass *pass, void (*work)(const Pass *, const Item *));

/* Takes a step with every chunk of every head of a segment, first to last or (direction -1) last to
 * first; state_after: the state after it is wanted. */
void pass_sweep(const Pass *pass, const Item *item, int64_t segment, int64_t direction,
                bool state_after, Step *step);

/* A chunk without positions, for the states of one of the item's heads. */
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
