/* The operands of linear attention for the plain kernels, in the letters of causal_linear.c: rows
 * a = phi(q), b = phi(k), v~ = [v, 1], num~ and dnum~, dense and per head; and states in double. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_ROWS_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_ROWS_H

#include "ops/attention/shared/arguments.h"
#include "ops/shared/internal.h"

/* One row per position and head, [positions, H, columns]. */
typedef struct HeadRows {
    Real *data;
    int64_t columns;
} HeadRows;

static inline int64_t query_positions(const AttentionInputs *x)
{
    return x->offsets ? x->N : x->B * x->N;
}

static inline int64_t key_positions(const AttentionInputs *x)
{
    return x->offsets ? x->N : x->B * x->keys;
}

static inline bool key_is_masked(const AttentionInputs *x, int64_t position)
{
    return x->key_lengths && position % x->keys >= x->key_lengths[position / x->keys];
}

/* Takes rows from a workspace. */
static inline HeadRows next_rows(Real **workspace, const AttentionInputs *x, int64_t positions,
                                 int64_t columns)
{
    const HeadRows rows = { *workspace, columns };
    *workspace += positions * x->H * columns;
    return rows;
}

/* The size in Reals of a state in double, [B, H, D, M + 1]. */
static inline int64_t state_size(const AttentionInputs *x)
{
    return x->B * x->H * x->D * (x->M + 1) * (int64_t)(sizeof(double) / sizeof(Real));
}

static inline Real phi(FeatureMap map, Real x)
{
    switch (map) {
    case FEATURE_MAP_RELU:
        return x < 0 ? 0 : x;
    case FEATURE_MAP_SOFTPLUS:
        return (x < 0 ? 0 : x) + real_log1p(real_exp(-real_abs(x)));
    case FEATURE_MAP_IDENTITY:
        return x;
    default:
        return x > 0 ? x + 1 : real_exp(x);
    }
}

/* phi'(x) from a = phi(x) */
static inline Real dphi(FeatureMap map, Real a)
{
    switch (map) {
    case FEATURE_MAP_RELU:
        return a == 0 ? 0 : 1;
    case FEATURE_MAP_SOFTPLUS:
        return -real_expm1(-a);
    case FEATURE_MAP_IDENTITY:
        return 1;
    default:
        return a > 1 ? 1 : a;
    }
}

/* a = phi(q) */
static inline void read_queries(HeadRows a, const LinearScan *s)
{
    const AttentionInputs *x = &s->x;
    const int64_t C = x->H * x->D;
    EACH_ROW(i, query_positions(x), C) {
        for (int64_t c = 0; c < C; c++)
            a.data[i * C + c] = phi(s->features, x->query[i * x->query_stride + c]);
    }
}

/* b = phi(k); 0 for masked keys, which may hold NaN */
static inline void read_keys(HeadRows b, const LinearScan *s)
{
    const AttentionInputs *x = &s->x;
    const int64_t C = x->H * x->D;
    EACH_ROW(j, key_positions(x), C) {
        for (int64_t c = 0; c < C; c++)
            b.data[j * C + c] =
                key_is_masked(x, j) ? 0 : phi(s->features, x->key[j * x->key_stride + c]);
    }
}

/* v~ = [v, 1]; 0 for masked keys */
static inline void read_values(HeadRows v, const LinearScan *s)
{
    const AttentionInputs *x = &s->x;
    const int64_t M = x->M, C = x->H * (M + 1);
    EACH_ROW(j, key_positions(x), C) {
        for (int64_t c = 0; c < C; c++) {
            const int64_t h = c / (M + 1), m = c % (M + 1);
            v.data[j * C + c] = key_is_masked(x, j) ? 0
                                : m == M            ? 1
                                                    : x->value[j * x->value_stride + h * M + m];
        }
    }
}

/* den_i = num~_i[M] + eps      out_i = num_i / den_i */
static inline void write_out(Real *out, Real *den, HeadRows num, const LinearScan *s)
{
    const int64_t M = s->x.M;
    EACH_ROW(i, query_positions(&s->x) * s->x.H, M) {
        const Real *num_i = num.data + i * (M + 1);
        den[i] = num_i[M] + s->eps;
        for (int64_t m = 0; m < M; m++)
            out[i * M + m] = num_i[m] / den[i];
    }
}

/* dnum_i = g_i / den_i      dden_i = -dnum_i.out_i */
static inline void read_dnum(HeadRows dnum, const Real *g, const Real *out, const Real *den,
                             const LinearScan *s)
{
    const int64_t M = s->x.M;
    EACH_ROW(i, query_positions(&s->x) * s->x.H, M) {
        Real *dnum_i = dnum.data + i * (M + 1);
        double dden = 0;
        for (int64_t m = 0; m < M; m++) {
            dnum_i[m] = g[i * M + m] / den[i];
            dden -= dnum_i[m] * out[i * M + m];
        }
        dnum_i[M] = (Real)dden;
    }
}

/* dq_i <- da_i phi'(q_i) */
static inline void write_dquery(Gradient dq, HeadRows da, HeadRows a, const LinearScan *s)
{
    const int64_t C = s->x.H * s->x.D;
    EACH_ROW(i, dq.data ? query_positions(&s->x) : 0, C) {
        for (int64_t c = 0; c < C; c++)
            gradient_add(dq, i * s->x.query_stride + c,
                         da.data[i * C + c] * dphi(s->features, a.data[i * C + c]));
    }
}

/* dk_j <- db_j phi'(k_j), and 0 for masked keys */
static inline void write_dkey(Gradient dk, HeadRows db, HeadRows b, const LinearScan *s)
{
    const int64_t C = s->x.H * s->x.D;
    EACH_ROW(j, dk.data ? key_positions(&s->x) : 0, C) {
        for (int64_t c = 0; c < C; c++)
            gradient_add(dk, j * s->x.key_stride + c,
                         key_is_masked(&s->x, j)
                             ? 0
                             : db.data[j * C + c] * dphi(s->features, b.data[j * C + c]));
    }
}

/* dv_j, of dv~'s columns but the last; 0 for masked keys */
static inline void write_dvalue(Gradient dvalue, HeadRows dv, const LinearScan *s)
{
    const int64_t M = s->x.M, C = s->x.H * M;
    EACH_ROW(j, dvalue.data ? key_positions(&s->x) : 0, C) {
        for (int64_t c = 0; c < C; c++)
            gradient_add(dvalue, j * s->x.value_stride + c,
                         key_is_masked(&s->x, j) ? 0
                                                 : dv.data[(j * s->x.H + c / M) * (M + 1) + c % M]);
    }
}

/* The index in a state [B, H, D, M + 1] of element k of T, which is stored as [B, H, M + 1, D] if
 * it is transposed, else alike. */
static inline int64_t state_index(int64_t k, const AttentionInputs *x, bool transposed)
{
    const int64_t D = x->D, W = x->M + 1, d = k % D, m = k / D % W;
    return transposed ? (k / (D * W) * D + d) * W + m : k;
}

/* T = state; 0 if it is NULL */
static inline void read_state(double *T, const Real *state, const AttentionInputs *x,
                              bool transposed)
{
    EACH(k, x->B * x->H * x->D * (x->M + 1)) {
        T[k] = state ? (double)state[state_index(k, x, transposed)] : 0;
    }
}

/* state <- T */
static inline void write_state(Gradient state, const double *T, const AttentionInputs *x,
                               bool transposed)
{
    EACH(k, state.data ? x->B * x->H * x->D * (x->M + 1) : 0) {
        gradient_add(state, state_index(k, x, transposed), (Real)T[k]);
    }
}

#endif
