/* Rows of linear attention's plain kernels, in the letters of causal_linear.c: a_i = phi(q_i),
 * b_j = phi(k_j), v~_j = [v_j, 1], dnum~_i, of a position over all sequences and a head; states. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_ROWS_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_ROWS_H

#include "ops/attention/shared/arguments.h"
#include "ops/shared/internal.h"

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

static inline bool key_is_masked(const AttentionInputs *x, int64_t j)
{
    return x->key_lengths && j % x->keys >= x->key_lengths[j / x->keys];
}

/* a = phi(q_i) */
static inline void read_query(Real *a, const LinearScan *s, int64_t i, int64_t h)
{
    const Real *q = s->x.query + i * s->x.query_stride + h * s->x.D;
    for (int64_t d = 0; d < s->x.D; d++)
        a[d] = phi(s->features, q[d]);
}

/* e^(l_i); a masked key's position changes no state */
static inline double read_decay(const LinearScan *s, int64_t i, int64_t h)
{
    return s->log_decay && !key_is_masked(&s->x, i) ? exp((double)s->log_decay[i * s->x.H + h]) : 1;
}

/* b = phi(k_j), v~ = [v_j, 1]; 0 for masked keys, which may hold NaN */
static inline void read_key_value(Real *b, Real *v, const LinearScan *s, int64_t j, int64_t h)
{
    const AttentionInputs *x = &s->x;
    const Real *key = x->key + j * x->key_stride + h * x->D;
    const Real *value = x->value + j * x->value_stride + h * x->M;
    const bool masked = key_is_masked(x, j);
    for (int64_t d = 0; d < x->D; d++)
        b[d] = masked ? 0 : phi(s->features, key[d]);
    for (int64_t m = 0; m < x->M; m++)
        v[m] = masked ? 0 : value[m];
    if (!s->unnormalized)
        v[x->M] = masked ? 0 : 1;
}

/* den_i = num~_i[M] + eps      out_i = num_i / den_i, or num_i if there is no divisor */
static inline void write_out(Real *out, Real *den, const Real *num, const LinearScan *s, int64_t i,
                             int64_t h)
{
    const int64_t M = s->x.M, row = i * s->x.H + h;
    if (!s->unnormalized)
        den[row] = num[M] + s->eps;
    for (int64_t m = 0; m < M; m++)
        out[row * M + m] = s->unnormalized ? num[m] : num[m] / den[row];
}

/* dnum_i = g_i / den_i      dden_i = -dnum_i.out_i; or dnum_i = g_i if there is no divisor */
static inline void read_dnum(Real *dnum, const Real *dout, const Real *out, const Real *den,
                             const LinearScan *s, int64_t i, int64_t h)
{
    const int64_t M = s->x.M, row = i * s->x.H + h;
    double dden = 0;
    for (int64_t m = 0; m < M; m++) {
        dnum[m] = s->unnormalized ? dout[row * M + m] : dout[row * M + m] / den[row];
        dden -= dnum[m] * out[row * M + m];
    }
    if (!s->unnormalized)
        dnum[M] = (Real)dden;
}

/* dq_i <- da phi'(q_i) */
static inline void write_dquery(Gradient dq, const Real *da, const Real *a, const LinearScan *s,
                                int64_t i, int64_t h)
{
    for (int64_t d = 0; dq.data && d < s->x.D; d++)
        gradient_add(dq, i * s->x.query_stride + h * s->x.D + d, da[d] * dphi(s->features, a[d]));
}

/* dk_j <- db phi'(k_j)      dv_j <- dv~ without its last element; 0 for masked keys */
static inline void write_dkey_dvalue(const AttentionGradient *to, const Real *db, const Real *b,
                                     const Real *dv, const LinearScan *s, int64_t j, int64_t h)
{
    const AttentionInputs *x = &s->x;
    const bool masked = key_is_masked(x, j);
    for (int64_t d = 0; to->key.data && d < x->D; d++)
        gradient_add(to->key, j * x->key_stride + h * x->D + d,
                     masked ? 0 : db[d] * dphi(s->features, b[d]));
    for (int64_t m = 0; to->value.data && m < x->M; m++)
        gradient_add(to->value, j * x->value_stride + h * x->M + m, masked ? 0 : dv[m]);
}

/* T [n] <- decay T */
static inline void decay_state(double *T, int64_t n, double decay)
{
    for (int64_t k = 0; decay != 1 && k < n; k++)
        T[k] *= decay;
}

/* T <- T + y w^T, y [Y], w [W]. T is stored transposed, [W, Y]. */
static inline void add_outer_product(double *T, const Real *y, int64_t Y, const Real *w, int64_t W)
{
    for (int64_t c = 0; c < W; c++)
        for (int64_t r = 0; r < Y; r++)
            T[c * Y + r] += (double)y[r] * (double)w[c];
}

/* The element c of T^T x, x [Y] */
static inline double state_element(const double *T, const Real *x, int64_t Y, int64_t c)
{
    double sum = 0;
    SUM(+, sum)
    for (int64_t r = 0; r < Y; r++)
        sum += T[c * Y + r] * (double)x[r];
    return sum;
}

/* o = T^T x, x [Y], o [W] */
static inline void apply_state(Real *o, const double *T, const Real *x, int64_t Y, int64_t W)
{
    for (int64_t c = 0; c < W; c++)
        o[c] = (Real)state_element(T, x, Y, c);
}

/* w.(T^T x), x [Y], w [W] */
static inline double state_product(const double *T, const Real *x, int64_t Y, const Real *w,
                                   int64_t W)
{
    double sum = 0;
    for (int64_t c = 0; c < W; c++)
        sum += (double)w[c] * state_element(T, x, Y, c);
    return sum;
}

/* The first position of sequence b, which ends at the first of sequence b + 1. */
static inline int64_t first_position(const AttentionInputs *x, int64_t b)
{
    return x->offsets ? x->offsets[b] : b * x->N;
}

/* A head of a sequence: its index h, and the sequence's positions, from begin to end - 1 */
typedef struct Head {
    int64_t h, begin, end;
} Head;

static inline Head head_of(const AttentionInputs *x, int64_t head)
{
    const int64_t b = head / x->H;
    return (Head){ head % x->H, first_position(x, b), first_position(x, b + 1) };
}

/* A head's state among all, whose states have size elements each; NULL if there are none */
static inline const Real *state_of_head(const Real *states, int64_t head, int64_t size)
{
    return states ? states + head * size : NULL;
}

/* T [D, W], or transposed [W, D], = a head's state [D, W]; 0 if it is NULL */
static inline void read_state(double *T, const Real *state, int64_t D, int64_t W, bool transposed)
{
    for (int64_t d = 0; d < D; d++)
        for (int64_t m = 0; m < W; m++)
            T[transposed ? m * D + d : d * W + m] = state ? state[d * W + m] : 0;
}

/* A head's dl, from dl_1 and dl_i - dl_{i+1}, [B, N, H]: 0 where l_i is -infinity, or the key is
 * masked; causal_linear.c */
void contribute_log_decay(Gradient dlog_decay, double dl_1, const double *differences,
                          const LinearScan *s, int64_t head);

/* The head's state [D, W] = T, which is stored as above; nothing if there are no states */
static inline void write_state(Real *states, int64_t head, const double *T, int64_t D, int64_t W,
                               bool transposed)
{
    for (int64_t k = 0; states && k < D * W; k++)
        states[head * D * W + k] = (Real)T[transposed ? k % W * D + k / W : k];
}

#endif
