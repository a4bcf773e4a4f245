/* The delta rule on CUDA, position by position: in the recurrence of S a column depends on itself
 * alone, and once u and du are known, so does each row. A thread owns a column of S or R, or a row,
 * and a block the neighboring ones of a head; no thread waits for another. Simple, not tuned. */
#include "ops/kernels.h"
#include "tensor/cuda/kernel.cuh"

enum { DELTA_THREADS = 32, DELTA_SHARED = 48 << 10 };

/* One of `width` columns of a head's state; its elements are DELTA_THREADS apart, in shared memory
 * or, if they do not fit, in a workspace. */
struct DeltaLine {
    Real *S;
    int64_t length; /* elements */
    int64_t head, h, c, begin, end;
    bool valid;

    __device__ DeltaLine(const DeltaRule &s, int64_t width, int64_t size, Real *states,
                         Real *shared)
    {
        const int64_t tiles = (width + DELTA_THREADS - 1) / DELTA_THREADS;
        head = blockIdx.x / tiles;
        c = blockIdx.x % tiles * DELTA_THREADS + threadIdx.x;
        length = size;
        const int64_t b = head / s.x.H;
        h = head % s.x.H;
        begin = s.x.offsets ? s.x.offsets[b] : b * s.x.N;
        end = s.x.offsets ? s.x.offsets[b + 1] : begin + s.x.N;
        valid = c < width;
        S = (states ? states + blockIdx.x * length * DELTA_THREADS : shared) + threadIdx.x;
    }
    __device__ Real &operator[](int64_t r) const
    {
        return S[r * DELTA_THREADS];
    }
    /* from: its first element, or NULL: 0 */
    __device__ void set(const Real *from, int64_t stride) const
    {
        for (int64_t r = 0; r < length; r++)
            (*this)[r] = from ? from[r * stride] : 0;
    }
    __device__ void decay(Real factor) const
    {
        for (int64_t r = 0; factor != 1 && r < length; r++)
            (*this)[r] *= factor;
    }
    template <typename T> __device__ void add(const T *y, Real w) const
    {
        for (int64_t r = 0; r < length; r++)
            (*this)[r] += load(&y[r]) * w;
    }
    template <typename T> __device__ Real dot(const T *x) const
    {
        Real sum = 0;
        for (int64_t r = 0; r < length; r++)
            sum += load(&x[r]) * (*this)[r];
        return sum;
    }
};

/* Position i of head h, as in delta_rule.c. beta and e^l are NaN where they are out of range. */
template <typename T> struct DeltaPosition {
    const T *q, *k, *v;
    Real beta, decay;
    int64_t row;
    bool masked;

    __device__ DeltaPosition(const DeltaRule &s, int64_t i, int64_t h)
    {
        const AttentionInputs &x = s.x;
        row = i * x.H + h;
        q = (const T *)x.query + i * x.query_stride + h * x.D;
        k = (const T *)x.key + i * x.key_stride + h * x.D;
        v = (const T *)x.value + i * x.value_stride + h * x.M;
        masked = x.key_lengths && i % x.N >= x.key_lengths[i / x.N];
        beta = masked ? 0 : s.beta[row];
        beta = beta >= 0 && beta <= 2 ? beta : (Real)NAN;
        const Real l = masked || !s.log_decay ? 0 : s.log_decay[row];
        decay = l <= 0 ? real_exp(l) : (Real)NAN;
    }
};

/* A column per thread:  u = beta (v - S^T k)      S <- S + k u^T      out = S^T q */
template <typename T>
__global__ void delta_forward(T *out, Real *u, Real *final_state, Real *states, DeltaRule s)
{
    DYNAMIC_SHARED(Real, shared);
    const int64_t D = s.x.D, M = s.x.M;
    const DeltaLine S(s, M, D, states, shared);
    if (!S.valid)
        return;
    const int64_t at = S.head * D * M + S.c;
    S.set(s.state ? s.state + at : NULL, M);
    for (int64_t i = S.begin; i < S.end; i++) {
        const DeltaPosition<T> p(s, i, S.h);
        const int64_t k = p.row * M + S.c;
        S.decay(p.decay);
        u[k] = p.masked ? 0 : p.beta * (load(&p.v[S.c]) - S.dot(p.k));
        if (!p.masked)
            S.add(p.k, u[k]);
        store(&out[k], S.dot(p.q));
    }
    for (int64_t d = 0; final_state && d < D; d++)
        final_state[at + d * M] = S[d];
}

/* What the passes leave to the next ones, [rows, M or D] */
struct DeltaScratch {
    Real *du, *Ru, *z, *dq; /* [rows, M], [rows, D], .. */
    Real *dl, *product;     /* [rows]; [B, H, D]: each row's part of <S_N, dL/dS_N> */
    Real *states;           /* NULL: in shared memory */
};

/* A column per thread, from the last position:
 *     R <- R + q g^T      du = R^T k      R <- e^l (R - k dv^T) */
template <typename T>
__global__ void delta_backward_du(DeltaScratch m, Real *dstate, const T *dout,
                                  const Real *dfinal_state, DeltaRule s)
{
    DYNAMIC_SHARED(Real, shared);
    const int64_t D = s.x.D, M = s.x.M;
    const DeltaLine R(s, M, D, m.states, shared);
    if (!R.valid)
        return;
    const int64_t at = R.head * D * M + R.c;
    R.set(dfinal_state ? dfinal_state + at : NULL, M);
    for (int64_t i = R.end - 1; i >= R.begin; i--) {
        const DeltaPosition<T> p(s, i, R.h);
        const int64_t k = p.row * M + R.c;
        R.add(p.q, load(&dout[k]));
        m.du[k] = p.masked ? 0 : R.dot(p.k);
        if (!p.masked)
            R.add(p.k, -p.beta * m.du[k]);
        R.decay(p.decay);
    }
    for (int64_t d = 0; dstate && d < D; d++)
        dstate[at + d * M] = R[d];
}

/* The same with a row per thread, for R u. */
template <typename T>
__global__ void delta_backward_Ru(DeltaScratch m, const T *dout, const Real *dfinal_state,
                                  const Real *u, DeltaRule s)
{
    DYNAMIC_SHARED(Real, shared);
    const int64_t D = s.x.D, M = s.x.M;
    const DeltaLine R(s, D, M, m.states, shared);
    if (!R.valid)
        return;
    R.set(dfinal_state ? dfinal_state + (R.head * D + R.c) * M : NULL, 1);
    for (int64_t i = R.end - 1; i >= R.begin; i--) {
        const DeltaPosition<T> p(s, i, R.h);
        R.add(dout + p.row * M, load(&p.q[R.c]));
        m.Ru[p.row * D + R.c] = p.masked ? 0 : R.dot(u + p.row * M);
        if (!p.masked)
            R.add(m.du + p.row * M, -p.beta * load(&p.k[R.c]));
        R.decay(p.decay);
    }
}

/* A row per thread:  z = S du      S <- S + k u^T      dq = S g */
template <typename T>
__global__ void delta_backward_dq(DeltaScratch m, const T *dout, const Real *dfinal_state,
                                  const Real *u, DeltaRule s)
{
    DYNAMIC_SHARED(Real, shared);
    const int64_t D = s.x.D, M = s.x.M;
    const DeltaLine S(s, D, M, m.states, shared);
    if (!S.valid)
        return;
    const int64_t at = (S.head * D + S.c) * M;
    S.set(s.state ? s.state + at : NULL, 1);
    for (int64_t i = S.begin; i < S.end; i++) {
        const DeltaPosition<T> p(s, i, S.h);
        S.decay(p.decay);
        m.z[p.row * D + S.c] = p.masked ? 0 : S.dot(m.du + p.row * M);
        if (!p.masked)
            S.add(u + p.row * M, load(&p.k[S.c]));
        m.dq[p.row * D + S.c] = S.dot(dout + p.row * M);
    }
    m.product[S.head * D + S.c] = dfinal_state ? S.dot(dfinal_state + at) : 0;
}

/* A position and head per thread: all contributions but those to log decay and state. */
template <typename T>
__global__ void delta_contribute(DeltaRuleGradient d, DeltaScratch m, DeltaRule s, int64_t rows)
{
    const int64_t D = s.x.D, M = s.x.M;
    GRID_FOR(row, rows) {
        const int64_t i = row / s.x.H, h = row % s.x.H;
        const DeltaPosition<T> p(s, i, h);
        const Real *du = m.du + row * M, *z = m.z + row * D, *dq = m.dq + row * D;
        T *dquery = (T *)d.x.query.data, *dkey = (T *)d.x.key.data, *dvalue = (T *)d.x.value.data;
        const int64_t at_query = i * s.x.query_stride + h * D;
        const int64_t at_key = i * s.x.key_stride + h * D;
        const int64_t at_value = i * s.x.value_stride + h * M;
        Real vdu = 0, kz = 0, qdq = 0;
        for (int64_t c = 0; c < M; c++)
            vdu += p.masked ? 0 : load(&p.v[c]) * du[c];
        for (int64_t c = 0; c < D; c++) {
            kz += p.masked ? 0 : load(&p.k[c]) * z[c];
            qdq += load(&p.q[c]) * dq[c];
        }
        m.dl[row] = qdq - p.beta * vdu;
        for (int64_t c = 0; dquery && c < D; c++)
            contribute(&dquery[at_query + c], d.x.query.accumulate, dq[c]);
        for (int64_t c = 0; dkey && c < D; c++)
            contribute(&dkey[at_key + c], d.x.key.accumulate, m.Ru[row * D + c] - p.beta * z[c]);
        for (int64_t c = 0; dvalue && c < M; c++)
            contribute(&dvalue[at_value + c], d.x.value.accumulate, p.beta * du[c]);
        if (d.beta.data)
            contribute(&d.beta.data[row], d.beta.accumulate, vdu - kz);
    }
}

/* A head per thread: dl_i <- <S_N, dL/dS_N> + sum_{t>=i} (q_t.dq_t - v_t.dv_t) */
template <typename T>
__global__ void delta_contribute_decay(Gradient dlog_decay, DeltaScratch m, DeltaRule s)
{
    GRID_FOR(head, s.x.B * s.x.H) {
        const int64_t b = head / s.x.H, h = head % s.x.H;
        const int64_t begin = s.x.offsets ? s.x.offsets[b] : b * s.x.N;
        const int64_t end = s.x.offsets ? s.x.offsets[b + 1] : begin + s.x.N;
        double sum = 0;
        for (int64_t d = 0; d < s.x.D; d++)
            sum += m.product[head * s.x.D + d];
        for (int64_t i = end - 1; i >= begin; i--) {
            const DeltaPosition<T> p(s, i, h);
            sum += m.dl[p.row];
            contribute(&dlog_decay.data[p.row], dlog_decay.accumulate, p.masked ? 0 : (Real)sum);
        }
    }
}

/* Blocks for `width` columns of all heads. */
static unsigned delta_blocks(const DeltaRule *s, int64_t width)
{
    return (unsigned)(s->x.B * s->x.H * ((width + DELTA_THREADS - 1) / DELTA_THREADS));
}

/* Bytes of shared memory for columns of this many elements: 0 if they do not fit. */
static int delta_shared(int64_t length)
{
    const int64_t bytes = length * DELTA_THREADS * (int64_t)sizeof(Real);
    return bytes <= DELTA_SHARED ? (int)bytes : 0;
}

/* A workspace for the states of `width` columns where shared memory is too small, or NULL. */
static Real *delta_states(const DeltaRule *s, int64_t width, int64_t length)
{
    return delta_shared(length) ? NULL
                                : device_workspace(delta_blocks(s, width) * length * DELTA_THREADS);
}

extern "C" void delta_rule_forward_cuda(TensorType type, Real *out, Real *u, Real *final_state,
                                        const DeltaRule *s)
{
    const int64_t D = s->x.D, M = s->x.M;
    Real *states = delta_states(s, M, D);
    BY_STORAGE(type, T,
               LAUNCH(delta_forward<T>, delta_blocks(s, M), DELTA_THREADS, delta_shared(D),
                      (T *)out, u, final_state, states, *s));
    device_workspace_free(states);
}

extern "C" void delta_rule_backward_cuda(TensorType type, DeltaRuleGradient d, const Real *dout,
                                         const Real *dfinal_state, const Real *u,
                                         const DeltaRule *s)
{
    const int64_t D = s->x.D, M = s->x.M, heads = s->x.B * s->x.H;
    const int64_t rows = (s->x.offsets ? 1 : s->x.B) * s->x.N * s->x.H;
    Real *memory = device_workspace(rows * (M + 3 * D + 1) + heads * D);
    DeltaScratch columns;
    columns.du = memory;
    columns.Ru = columns.du + rows * M;
    columns.z = columns.Ru + rows * D;
    columns.dq = columns.z + rows * D;
    columns.dl = columns.dq + rows * D;
    columns.product = columns.dl + rows;
    DeltaScratch lines = columns;
    columns.states = delta_states(s, M, D);
    lines.states = delta_states(s, D, M);
    BY_STORAGE(type, T, {
        const T *g = (const T *)dout;
        LAUNCH(delta_backward_du<T>, delta_blocks(s, M), DELTA_THREADS, delta_shared(D), columns,
               d.state, g, dfinal_state, *s);
        LAUNCH(delta_backward_Ru<T>, delta_blocks(s, D), DELTA_THREADS, delta_shared(M), lines, g,
               dfinal_state, u, *s);
        LAUNCH(delta_backward_dq<T>, delta_blocks(s, D), DELTA_THREADS, delta_shared(M), lines, g,
               dfinal_state, u, *s);
        LAUNCH(delta_contribute<T>, blocks_for(rows), THREADS, 0, d, columns, *s, rows);
        if (d.log_decay.data)
            LAUNCH(delta_contribute_decay<T>, blocks_for(heads), THREADS, 0, d.log_decay, columns,
                   *s);
    });
    device_workspace_free(lines.states);
    device_workspace_free(columns.states);
    device_workspace_free(memory);
}
