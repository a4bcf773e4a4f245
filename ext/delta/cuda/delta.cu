/* The delta rule on CUDA, position by position: in the recurrence of S a column depends on itself
 * alone, and once u and du are known, so does each row. A thread owns a column of S or R, or a row,
 * and a block the neighboring ones of a head; no thread waits for another. Simple, not tuned. */
#include "ext/delta/kernels.h"
#include "tensor/cuda/kernel.cuh"

/* DELTA_SEGMENT: positions after which the cumulative sum of the log decay's gradient restarts */
enum { DELTA_THREADS = 32, DELTA_SHARED = 48 << 10, DELTA_SEGMENT = 128 };

/* The positions of a sequence; those from `keys` on are masked. */
struct DeltaSequence {
    int64_t b, begin, keys, end;

    __device__ DeltaSequence(const DeltaRule &s, int64_t sequence)
    {
        b = sequence;
        begin = s.x.offsets ? s.x.offsets[b] : b * s.x.N;
        end = s.x.offsets ? s.x.offsets[b + 1] : begin + s.x.N;
        keys = s.x.key_lengths ? begin + s.x.key_lengths[b] : end;
    }
    /* The number, of all sequences, of the segment that ends with position i, or -1. */
    __device__ int64_t segment(int64_t i) const
    {
        const bool ends = i < keys && (i + 1 == keys || (i + 1) % DELTA_SEGMENT == 0);
        return ends ? i / DELTA_SEGMENT + b : -1;
    }
};

/* Position i of head h, as in delta_rule.c. beta and l are NaN where they are out of range. */
template <typename T> struct DeltaPosition {
    const T *q, *k, *v;
    Real beta;
    const Real *log_decays; /* NULL: 0 */
    int64_t decays;         /* one for all rows of the state, or one each */
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
        decays = s.decays;
        log_decays = masked || !s.log_decay ? NULL : s.log_decay + row * decays;
    }
    /* The log decay of row d. */
    __device__ Real l(int64_t d) const
    {
        const Real value = log_decays ? log_decays[decays == 1 ? 0 : d] : 0;
        return value <= 0 ? value : (Real)NAN;
    }
};

/* A product of weak decays, which is not applied yet: its rounding would add up. */
struct DeltaPending {
    double log;
    Real value;

    /* times e^l; returns what a stored row is multiplied by. */
    __device__ Real decay(double l)
    {
        log += l;
        value = real_exp((Real)log);
        if (log > -0.7)
            return 1;
        const Real factor = value;
        log = 0;
        value = 1;
        return factor;
    }
};

/* The same of each row of the states, [positions, H, D], in the order of a scan, for lines that are
 * columns; NULL: a position has one decay. */
struct DeltaDecays {
    Real *factor, *pending;
};

/* One of `width` columns of a head's state; its elements are DELTA_THREADS apart, in shared memory
 * or, if they do not fit, in a workspace. They lack the factor pending.value, or one each. */
struct DeltaLine {
    Real *S;
    const Real *pending_each; /* NULL: 1 */
    int64_t length;           /* elements */
    int64_t head, h, c;
    DeltaSequence positions;
    DeltaPending pending;
    bool valid;

    __device__ DeltaLine(const DeltaRule &s, int64_t width, int64_t size, Real *states,
                         Real *shared)
        : positions(s, blockIdx.x / tiles(width) / s.x.H)
    {
        head = blockIdx.x / tiles(width);
        h = head % s.x.H;
        c = blockIdx.x % tiles(width) * DELTA_THREADS + threadIdx.x;
        length = size;
        valid = c < width;
        pending = { 0, 1 };
        pending_each = NULL;
        S = (states ? states + blockIdx.x * length * DELTA_THREADS : shared) + threadIdx.x;
    }
    __device__ static int64_t tiles(int64_t width)
    {
        return (width + DELTA_THREADS - 1) / DELTA_THREADS;
    }
    __device__ Real &stored(int64_t r) const
    {
        return S[r * DELTA_THREADS];
    }
    __device__ Real each(int64_t r) const
    {
        return pending_each ? pending_each[r] : 1;
    }
    __device__ Real operator[](int64_t r) const
    {
        return pending.value * each(r) * stored(r);
    }
    /* from: its first element, or NULL: 0 */
    __device__ void set(const Real *from, int64_t stride)
    {
        for (int64_t r = 0; r < length; r++)
            stored(r) = from ? from[r * stride] : 0;
    }
    /* times e^l */
    __device__ void decay(double l)
    {
        const Real factor = l == 0 ? 1 : pending.decay(l);
        for (int64_t r = 0; factor != 1 && r < length; r++)
            stored(r) *= factor;
    }
    /* A column, at a position */
    template <typename T>
    __device__ void decay_column(const DeltaPosition<T> &p, const DeltaDecays &decays)
    {
        if (!decays.factor) {
            decay(p.l(0));
            return;
        }
        for (int64_t r = 0; r < length; r++)
            stored(r) *= decays.factor[p.row * length + r];
        pending_each = decays.pending + p.row * length;
    }
    template <typename T> __device__ void add(const T *y, Real w) const
    {
        w /= pending.value;
        for (int64_t r = 0; r < length; r++)
            stored(r) += load(&y[r]) * (pending_each ? w / each(r) : w);
    }
    template <typename T> __device__ Real dot(const T *x) const
    {
        Real sum = 0;
        for (int64_t r = 0; r < length; r++)
            sum += load(&x[r]) * each(r) * stored(r);
        return pending.value * sum;
    }
};

/* A row of the states per thread: factor and pending, from the first position or in reverse. */
template <typename T> __global__ void delta_pending(DeltaDecays decays, DeltaRule s, bool reverse)
{
    GRID_FOR(index, s.x.B * s.x.H * s.x.D) {
        const int64_t d = index % s.x.D, head = index / s.x.D;
        const DeltaSequence positions(s, head / s.x.H);
        const int64_t count = positions.end - positions.begin;
        DeltaPending pending = { 0, 1 };
        for (int64_t step = 0; step < count; step++) {
            const int64_t i = reverse ? positions.end - 1 - step : positions.begin + step;
            const DeltaPosition<T> p(s, i, head % s.x.H);
            decays.factor[p.row * s.x.D + d] = pending.decay(p.l(d));
            decays.pending[p.row * s.x.D + d] = pending.value;
        }
    }
}

/* A column per thread:  u = beta (v - S^T k)      S <- S + k u^T      out = S^T q */
template <typename T>
__global__ void delta_forward(T *out, Real *u, Real *final_state, Real *states, DeltaDecays decays,
                              DeltaRule s)
{
    DYNAMIC_SHARED(Real, shared);
    const int64_t D = s.x.D, M = s.x.M;
    DeltaLine S(s, M, D, states, shared);
    if (!S.valid)
        return;
    const int64_t at = S.head * D * M + S.c;
    S.set(s.state ? s.state + at : NULL, M);
    for (int64_t i = S.positions.begin; i < S.positions.end; i++) {
        const DeltaPosition<T> p(s, i, S.h);
        const int64_t k = p.row * M + S.c;
        S.decay_column(p, decays);
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
    Real *dl;               /* [rows, D]: of each row of the states; or NULL */
    Real *segment_R;        /* [segments, H, D, M]: R' of their last positions */
    Real *states;           /* NULL: in shared memory */

    /* Row d of R' if position i ends a segment, or NULL. */
    __device__ Real *segment_row(const DeltaRule &s, const DeltaLine &row, int64_t i) const
    {
        const int64_t segment = dl ? row.positions.segment(i) : -1;
        const int64_t at = ((segment * s.x.H + row.h) * s.x.D + row.c) * s.x.M;
        return segment < 0 ? NULL : segment_R + at;
    }
};

/* A column per thread, from the last position:
 *     R <- R + q g^T      du = R^T k      R <- e^l (R - k dv^T) */
template <typename T>
__global__ void delta_backward_du(DeltaScratch m, Real *dstate, const T *dout,
                                  const Real *dfinal_state, DeltaDecays decays, DeltaRule s)
{
    DYNAMIC_SHARED(Real, shared);
    const int64_t D = s.x.D, M = s.x.M;
    DeltaLine R(s, M, D, m.states, shared);
    if (!R.valid)
        return;
    const int64_t at = R.head * D * M + R.c;
    R.set(dfinal_state ? dfinal_state + at : NULL, M);
    for (int64_t i = R.positions.end - 1; i >= R.positions.begin; i--) {
        const DeltaPosition<T> p(s, i, R.h);
        const int64_t k = p.row * M + R.c;
        R.add(p.q, load(&dout[k]));
        m.du[k] = p.masked ? 0 : R.dot(p.k);
        if (!p.masked)
            R.add(p.k, -p.beta * m.du[k]);
        R.decay_column(p, decays);
    }
    for (int64_t d = 0; dstate && d < D; d++)
        dstate[at + d * M] = R[d];
}

/* The same with a row per thread, for R u; and R' u, R' for dl. */
template <typename T>
__global__ void delta_backward_Ru(DeltaScratch m, const T *dout, const Real *dfinal_state,
                                  const Real *u, DeltaRule s)
{
    DYNAMIC_SHARED(Real, shared);
    const int64_t D = s.x.D, M = s.x.M;
    DeltaLine R(s, D, M, m.states, shared);
    if (!R.valid)
        return;
    R.set(dfinal_state ? dfinal_state + (R.head * D + R.c) * M : NULL, 1);
    for (int64_t i = R.positions.end - 1; i >= R.positions.begin; i--) {
        const DeltaPosition<T> p(s, i, R.h);
        Real *segment_row = m.segment_row(s, R, i);
        for (int64_t r = 0; segment_row && r < M; r++)
            segment_row[r] = R[r];
        if (m.dl)
            m.dl[p.row * D + R.c] = p.masked || segment_row ? 0 : R.dot(u + p.row * M);
        R.add(dout + p.row * M, load(&p.q[R.c]));
        m.Ru[p.row * D + R.c] = p.masked ? 0 : R.dot(u + p.row * M);
        if (!p.masked)
            R.add(m.du + p.row * M, -p.beta * load(&p.k[R.c]));
        R.decay(p.l(R.c));
    }
}

/* A row per thread:  z = S du      S <- S + k u^T      dq = S g
 * and its part of dl_i - dl_{i+1} = q_i.Z_i g_i - beta_i k_i.z_i - k_i.R'_i u_i, or of <Z_i, R'_i>
 * where the sum restarts. */
template <typename T>
__global__ void delta_backward_dq(DeltaScratch m, const T *dout, const Real *u, DeltaRule s)
{
    DYNAMIC_SHARED(Real, shared);
    const int64_t D = s.x.D, M = s.x.M;
    DeltaLine S(s, D, M, m.states, shared);
    if (!S.valid)
        return;
    S.set(s.state ? s.state + (S.head * D + S.c) * M : NULL, 1);
    for (int64_t i = S.positions.begin; i < S.positions.end; i++) {
        const DeltaPosition<T> p(s, i, S.h);
        const int64_t at = p.row * D + S.c;
        S.decay(p.l(S.c));
        const Real z = p.masked ? 0 : S.dot(m.du + p.row * M);
        m.z[at] = z;
        if (m.dl && !p.masked) {
            const Real *segment_row = m.segment_row(s, S, i);
            m.dl[at] = load(&p.q[S.c]) * S.dot(dout + p.row * M) -
                       load(&p.k[S.c]) * (p.beta * z + m.dl[at]) +
                       (segment_row ? S.dot(segment_row) : 0);
        }
        if (!p.masked)
            S.add(u + p.row * M, load(&p.k[S.c]));
        m.dq[at] = S.dot(dout + p.row * M);
    }
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
        Real vdu = 0, kz = 0;
        for (int64_t c = 0; c < M; c++)
            vdu += p.masked ? 0 : load(&p.v[c]) * du[c];
        for (int64_t c = 0; c < D; c++)
            kz += p.masked ? 0 : load(&p.k[c]) * z[c];
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

/* A head, DELTA_SEGMENT positions and all rows of the states or, with a decay each, one per thread:
 * dl_i, the sum from the segment's end; 0 where e^l is, for a first position without a state, and
 * for masked ones. */
template <typename T>
__global__ void delta_contribute_decay(Gradient dlog_decay, DeltaScratch m, DeltaRule s,
                                       int64_t segments)
{
    const int64_t heads = s.x.B * s.x.H;
    GRID_FOR(index, heads * segments * s.decays) {
        const int64_t head = index / s.decays % heads, h = head % s.x.H, row = index % s.decays;
        const int64_t rows_end = s.decays == 1 ? s.x.D : row + 1;
        const DeltaSequence positions(s, head / s.x.H);
        const int64_t segment = positions.begin / DELTA_SEGMENT + index / s.decays / heads;
        int64_t first = segment * DELTA_SEGMENT, end = first + DELTA_SEGMENT;
        first = first < positions.begin ? positions.begin : first;
        end = end > positions.end ? positions.end : end;
        double sum = 0;
        for (int64_t i = end - 1; i >= first; i--) {
            const DeltaPosition<T> p(s, i, h);
            const bool empty = real_exp(p.l(row)) == 0 || (i == positions.begin && !s.state);
            for (int64_t d = row; !p.masked && d < rows_end; d++)
                sum += m.dl[p.row * s.x.D + d];
            sum = empty ? 0 : sum;
            contribute(&dlog_decay.data[p.row * s.decays + row], dlog_decay.accumulate, (Real)sum);
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

/* Positions and heads. */
static int64_t delta_rows(const DeltaRule *s)
{
    return (s->x.offsets ? 1 : s->x.B) * s->x.N * s->x.H;
}

/* The decays of the rows of the states, in a workspace that the caller frees with factor. */
static DeltaDecays delta_decays(TensorType type, const DeltaRule *s, bool reverse)
{
    const int64_t size = delta_rows(s) * s->x.D;
    if (s->decays == 1)
        return { NULL, NULL };
    Real *memory = device_workspace(2 * size);
    const DeltaDecays decays = { memory, memory + size };
    BY_STORAGE(type, T,
               LAUNCH(delta_pending<T>, blocks_for(s->x.B * s->x.H * s->x.D), THREADS, 0, decays,
                      *s, reverse));
    return decays;
}

static void delta_rule_forward_cuda(TensorType type, Real *out, Real *u, Real *final_state,
                                    const DeltaRule *s)
{
    const int64_t D = s->x.D, M = s->x.M;
    const DeltaDecays decays = delta_decays(type, s, false);
    Real *states = delta_states(s, M, D);
    BY_STORAGE(type, T,
               LAUNCH(delta_forward<T>, delta_blocks(s, M), DELTA_THREADS, delta_shared(D),
                      (T *)out, u, final_state, states, decays, *s));
    device_workspace_free(states);
    device_workspace_free(decays.factor);
}

static void delta_rule_backward_cuda(TensorType type, DeltaRuleGradient d, const Real *dout,
                                     const Real *dfinal_state, const Real *u, const DeltaRule *s)
{
    const int64_t D = s->x.D, M = s->x.M, heads = s->x.B * s->x.H;
    const int64_t rows = delta_rows(s);
    const int64_t segments = d.log_decay.data ? rows / s->x.H / DELTA_SEGMENT + s->x.B : 0;
    const int64_t segment_R = segments * s->x.H * D * M;
    const DeltaDecays decays = delta_decays(type, s, true);
    Real *memory = device_workspace(rows * (M + (segments ? 4 : 3) * D) + segment_R);
    DeltaScratch columns;
    columns.du = memory;
    columns.Ru = columns.du + rows * M;
    columns.z = columns.Ru + rows * D;
    columns.dq = columns.z + rows * D;
    columns.segment_R = columns.dq + rows * D;
    columns.dl = segments ? columns.segment_R + segment_R : NULL;
    DeltaScratch lines = columns;
    columns.states = delta_states(s, M, D);
    lines.states = delta_states(s, D, M);
    BY_STORAGE(type, T, {
        const T *g = (const T *)dout;
        LAUNCH(delta_backward_du<T>, delta_blocks(s, M), DELTA_THREADS, delta_shared(D), columns,
               d.state, g, dfinal_state, decays, *s);
        LAUNCH(delta_backward_Ru<T>, delta_blocks(s, D), DELTA_THREADS, delta_shared(M), lines, g,
               dfinal_state, u, *s);
        LAUNCH(delta_backward_dq<T>, delta_blocks(s, D), DELTA_THREADS, delta_shared(M), lines, g,
               u, *s);
        LAUNCH(delta_contribute<T>, blocks_for(rows), THREADS, 0, d, columns, *s, rows);
        const int64_t parts = s->x.N / DELTA_SEGMENT + 2; /* of a sequence, at most */
        if (segments)
            LAUNCH(delta_contribute_decay<T>, blocks_for(heads * parts * s->decays), THREADS, 0,
                   d.log_decay, columns, *s, parts);
    });
    device_workspace_free(lines.states);
    device_workspace_free(columns.states);
    device_workspace_free(memory);
    device_workspace_free(decays.factor);
}

template <TensorType type>
static constexpr DeltaKernels delta_table = { call<delta_rule_forward_cuda, type>,
                                              call<delta_rule_backward_cuda, type> };
const DeltaKernels delta_cuda = delta_table<TENSOR_REAL>;
const DeltaKernels delta_cuda_bf16 = delta_table<TENSOR_BF16>;
