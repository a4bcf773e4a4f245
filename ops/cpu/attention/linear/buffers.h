/* A thread's buffers for linear attention on the CPU. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_BUFFERS_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_BUFFERS_CPU_H

#include "ops/cpu/attention/linear/plan.h"

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

#endif
