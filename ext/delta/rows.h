/* Rows and states of the delta rule's plain kernels, in the letters of delta_rule.c. */
#ifndef TAPEGRAD_DELTA_ROWS_H
#define TAPEGRAD_DELTA_ROWS_H

#include "ext/delta/kernels.h"

/* o [D] = T x, x [M]; T is stored transposed, [M, D]. */
static inline void apply_transposed_state(double *o, const double *T, const Real *x, int64_t D,
                                          int64_t M)
{
    for (int64_t d = 0; d < D; d++) {
        double sum = 0;
        for (int64_t m = 0; m < M; m++)
            sum += T[m * D + d] * (double)x[m];
        o[d] = sum;
    }
}

/* Position i of head h, of all sequences: its rows, and the index of its row of M elements. */
typedef struct DeltaPosition {
    const Real *q, *k, *v;
    double beta;   /* 0 if it is masked; then k and v may hold NaN */
    double decay;  /* of all rows of the state, or */
    const Real *l; /* the log decay of each; NULL: they have one decay */
    int64_t row;
    bool masked;
} DeltaPosition;

static inline DeltaPosition delta_position(const DeltaRule *s, int64_t i, int64_t h)
{
    const AttentionInputs *x = &s->x;
    const int64_t row = i * x->H + h;
    const bool masked = key_is_masked(x, i);
    return (DeltaPosition){
        .q = x->query + i * x->query_stride + h * x->D,
        .k = x->key + i * x->key_stride + h * x->D,
        .v = x->value + i * x->value_stride + h * x->M,
        .beta = masked ? 0 : (double)s->beta[row],
        .decay = masked || !s->log_decay || s->decays > 1 ? 1 : exp((double)s->log_decay[row]),
        .l = masked || s->decays == 1 ? NULL : s->log_decay + row * s->decays,
        .row = row,
        .masked = masked,
    };
}

/* e^(l_d) of row d */
static inline double delta_row_decay(const DeltaPosition *p, int64_t d)
{
    return p->l ? exp((double)p->l[d]) : p->decay;
}

/* T <- diag(e^(l)) T; T is stored transposed, [M, D]. */
static inline void delta_decay_rows(double *T, const DeltaPosition *p, int64_t D, int64_t M)
{
    if (!p->l)
        decay_state(T, D * M, p->decay);
    for (int64_t d = 0; p->l && d < D; d++) {
        const double decay = delta_row_decay(p, d);
        for (int64_t m = 0; m < M; m++)
            T[m * D + d] *= decay;
    }
}

#endif
