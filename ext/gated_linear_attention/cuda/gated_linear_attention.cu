/* Gated linear attention on CUDA, position by position: a column of S depends on itself alone, and
 * so does a row. A thread owns a column or a row of S or R, and a block the neighboring ones of a
 * head; no thread waits for another. Simple, not tuned, and not yet measured on a GPU. */
#include "ext/gated_linear_attention/kernels.h"
#include "tensor/cuda/kernel.cuh"

enum { GATED_LINEAR_THREADS = 32, GATED_LINEAR_SHARED = 48 << 10 };

/* One of `width` rows or columns of a head's state; its elements are GATED_LINEAR_THREADS apart, in
 * shared memory or, if they do not fit, in a workspace; and the positions of its sequence. */
struct GatedLinearLine {
    Real *T;
    int64_t length; /* elements */
    int64_t head, h, c, begin, end;
    bool valid;

    __device__ GatedLinearLine(const GatedLinear &s, int64_t width, int64_t size, Real *states,
                               Real *shared)
    {
        const int64_t tiles = (width + GATED_LINEAR_THREADS - 1) / GATED_LINEAR_THREADS;
        head = blockIdx.x / tiles;
        h = head % s.x.H;
        c = blockIdx.x % tiles * GATED_LINEAR_THREADS + threadIdx.x;
        const int64_t b = head / s.x.H;
        begin = s.x.offsets ? s.x.offsets[b] : b * s.x.N;
        end = s.x.offsets ? s.x.offsets[b + 1] : begin + s.x.N;
        length = size;
        valid = c < width;
        T = (states ? states + blockIdx.x * length * GATED_LINEAR_THREADS : shared) + threadIdx.x;
    }
    __device__ Real &operator[](int64_t r) const
    {
        return T[r * GATED_LINEAR_THREADS];
    }
    /* from: its first element, or NULL: 0 */
    __device__ void set(const Real *from, int64_t stride) const
    {
        for (int64_t r = 0; r < length; r++)
            (*this)[r] = from ? from[r * stride] : 0;
    }
};

/* Position i of head h: its rows, and the index of its row. */
template <typename T> struct GatedLinearPosition {
    const T *q, *k, *v;
    const Real *e; /* [D] */
    int64_t row;
    bool masked;

    __device__ GatedLinearPosition(const GatedLinear &s, const Real *decay, int64_t i, int64_t h)
    {
        const AttentionInputs &x = s.x;
        row = i * x.H + h;
        q = (const T *)x.query + i * x.query_stride + h * x.D;
        k = (const T *)x.key + i * x.key_stride + h * x.D;
        v = (const T *)x.value + i * x.value_stride + h * x.M;
        e = decay + row * x.D;
        masked = x.key_lengths && i % x.N >= x.key_lengths[i / x.N];
    }
    __device__ Real key(int64_t d) const
    {
        return masked ? 0 : load(&k[d]);
    }
    __device__ Real value(int64_t m) const
    {
        return masked ? 0 : load(&v[m]);
    }
};

/* decay [rows, D]: e_i = e^(l_i), 1 if position i is masked, NaN where l_i > 0. A thread computes
 * those of one element of a head's keys, and each e_i makes up for the rounding of those before,
 * since their product would be off by 1e-3 after 100 000 positions. */
template <typename T> __global__ void gated_linear_decays(Real *decay, GatedLinear s)
{
    GRID_FOR(index, s.x.B * s.x.H * s.x.D) {
        const int64_t head = index / s.x.D, d = index % s.x.D, b = head / s.x.H;
        const int64_t begin = s.x.offsets ? s.x.offsets[b] : b * s.x.N;
        const int64_t end = s.x.offsets ? s.x.offsets[b + 1] : begin + s.x.N;
        double error = 0;
        for (int64_t i = begin; i < end; i++) {
            const GatedLinearPosition<T> p(s, decay, i, head % s.x.H);
            const Real l = p.masked ? 0 : s.log_decay[p.row * s.x.D + d];
            const double e = exp((double)l + error);
            const Real rounded = l <= 0 ? (Real)e : (Real)NAN;
            decay[p.row * s.x.D + d] = rounded;
            error = l > -1 ? e / (double)rounded - 1 : 0;
        }
    }
}

/* A column per thread:  S <- diag(e) S + k v^T      out = S^T q */
template <typename T>
__global__ void gated_linear_forward(T *out, Real *final_state, const Real *decay, Real *states,
                                     GatedLinear s)
{
    DYNAMIC_SHARED(Real, shared);
    const int64_t D = s.x.D, M = s.x.M;
    const GatedLinearLine S(s, M, D, states, shared);
    if (!S.valid)
        return;
    const int64_t at = S.head * D * M + S.c;
    S.set(s.state ? s.state + at : NULL, M);
    for (int64_t i = S.begin; i < S.end; i++) {
        const GatedLinearPosition<T> p(s, decay, i, S.h);
        const Real v = p.value(S.c);
        Real sum = 0;
        for (int64_t d = 0; d < D; d++) {
            S[d] = p.e[d] * S[d] + p.key(d) * v;
            sum += load(&p.q[d]) * S[d];
        }
        store(&out[p.row * M + S.c], sum);
    }
    for (int64_t d = 0; final_state && d < D; d++)
        final_state[at + d * M] = S[d];
}

/* A row per thread:  S <- diag(e) S      Zg = S g      S <- S + k v^T      dq = Zg + (v.g) k
 * and <S_N, F>_d, in Real [heads, D] */
template <typename T>
__global__ void gated_linear_backward_dq(GatedLinearGradient to, Real *Zg, Real *last,
                                         const T *dout, const Real *dfinal_state, const Real *decay,
                                         Real *states, GatedLinear s)
{
    DYNAMIC_SHARED(Real, shared);
    const int64_t D = s.x.D, M = s.x.M;
    const GatedLinearLine S(s, D, M, states, shared);
    if (!S.valid)
        return;
    T *dquery = (T *)to.x.query.data;
    const int64_t at = (S.head * D + S.c) * M;
    S.set(s.state ? s.state + at : NULL, 1);
    for (int64_t i = S.begin; i < S.end; i++) {
        const GatedLinearPosition<T> p(s, decay, i, S.h);
        const Real e = p.e[S.c], k = p.key(S.c);
        Real sum = 0, vg = 0;
        for (int64_t m = 0; m < M; m++) {
            const Real Z = e * S[m], v = p.value(m), g = load(&dout[p.row * M + m]);
            sum += Z * g;
            vg += v * g;
            S[m] = Z + k * v;
        }
        Zg[p.row * D + S.c] = sum;
        if (dquery)
            contribute(&dquery[i * s.x.query_stride + S.h * D + S.c], to.x.query.accumulate,
                       sum + vg * k);
    }
    double product = 0;
    for (int64_t m = 0; dfinal_state && m < M; m++)
        product += (double)S[m] * (double)dfinal_state[at + m];
    last[S.head * D + S.c] = (Real)product;
}

/* A row per thread, from the last position:
 *     Rv = R' v      dk = Rv + (v.g) q      dl <- dl + q o Zg - k o Rv
 *     R' <- diag(e) (R' + q g^T) */
template <typename T>
__global__ void gated_linear_backward_dk(GatedLinearGradient to, const Real *Zg, const Real *last,
                                         const T *dout, const Real *dfinal_state, const Real *decay,
                                         Real *states, GatedLinear s)
{
    DYNAMIC_SHARED(Real, shared);
    const int64_t D = s.x.D, M = s.x.M;
    const GatedLinearLine R(s, D, M, states, shared);
    if (!R.valid)
        return;
    T *dkey = (T *)to.x.key.data;
    double dl = (double)last[R.head * D + R.c];
    R.set(dfinal_state ? dfinal_state + (R.head * D + R.c) * M : NULL, 1);
    for (int64_t i = R.end - 1; i >= R.begin; i--) {
        const GatedLinearPosition<T> p(s, decay, i, R.h);
        const Real e = p.e[R.c], q = load(&p.q[R.c]);
        const int64_t at = p.row * D + R.c;
        Real Rv = 0, vg = 0;
        for (int64_t m = 0; m < M; m++) {
            const Real v = p.value(m), g = load(&dout[p.row * M + m]), R_m = R[m];
            Rv += R_m * v;
            vg += v * g;
            R[m] = e * (R_m + q * g);
        }
        dl += (double)q * (double)Zg[at] - (double)p.key(R.c) * (double)Rv;
        if (e == 0 || (i == R.begin && !s.state))
            dl = 0;
        if (to.log_decay.data)
            contribute(&to.log_decay.data[at], to.log_decay.accumulate, p.masked ? 0 : (Real)dl);
        if (dkey)
            contribute(&dkey[i * s.x.key_stride + R.h * D + R.c], to.x.key.accumulate,
                       p.masked ? 0 : Rv + vg * q);
    }
}

/* A column per thread, from the last position:
 *     R <- R' + q g^T      dv = R^T k      R' <- diag(e) R */
template <typename T>
__global__ void gated_linear_backward_dv(GatedLinearGradient to, const T *dout,
                                         const Real *dfinal_state, const Real *decay, Real *states,
                                         GatedLinear s)
{
    DYNAMIC_SHARED(Real, shared);
    const int64_t D = s.x.D, M = s.x.M;
    const GatedLinearLine R(s, M, D, states, shared);
    if (!R.valid)
        return;
    T *dvalue = (T *)to.x.value.data;
    const int64_t at = R.head * D * M + R.c;
    R.set(dfinal_state ? dfinal_state + at : NULL, M);
    for (int64_t i = R.end - 1; i >= R.begin; i--) {
        const GatedLinearPosition<T> p(s, decay, i, R.h);
        const Real g = load(&dout[p.row * M + R.c]);
        Real dv = 0;
        for (int64_t d = 0; d < D; d++) {
            const Real R_d = R[d] + load(&p.q[d]) * g;
            dv += p.key(d) * R_d;
            R[d] = p.e[d] * R_d;
        }
        if (dvalue)
            contribute(&dvalue[i * s.x.value_stride + R.h * M + R.c], to.x.value.accumulate, dv);
    }
    for (int64_t d = 0; to.state && d < D; d++)
        to.state[at + d * M] = R[d];
}

/* Blocks for `width` lines of all heads. */
static unsigned gated_linear_blocks(const GatedLinear *s, int64_t width)
{
    return (unsigned)(s->x.B * s->x.H *
                      ((width + GATED_LINEAR_THREADS - 1) / GATED_LINEAR_THREADS));
}

/* Bytes of shared memory for lines of this many elements: 0 if they do not fit. */
static int gated_linear_shared(int64_t length)
{
    const int64_t bytes = length * GATED_LINEAR_THREADS * (int64_t)sizeof(Real);
    return bytes <= GATED_LINEAR_SHARED ? (int)bytes : 0;
}

/* A workspace for `width` lines where shared memory is too small, or NULL. */
static Real *gated_linear_states(const GatedLinear *s, int64_t width, int64_t length)
{
    return gated_linear_shared(length)
               ? NULL
               : device_workspace(gated_linear_blocks(s, width) * length * GATED_LINEAR_THREADS);
}

static void gated_linear_forward_cuda(TensorType type, Real *out, Real *final_state,
                                      const GatedLinear *s)
{
    const int64_t D = s->x.D, M = s->x.M, rows = (s->x.offsets ? 1 : s->x.B) * s->x.N * s->x.H;
    Real *decay = device_workspace(rows * D), *states = gated_linear_states(s, M, D);
    BY_STORAGE(type, T, {
        LAUNCH(gated_linear_decays<T>, blocks_for(s->x.B * s->x.H * D), THREADS, 0, decay, *s);
        LAUNCH(gated_linear_forward<T>, gated_linear_blocks(s, M), GATED_LINEAR_THREADS,
               gated_linear_shared(D), (T *)out, final_state, decay, states, *s);
    });
    device_workspace_free(states);
    device_workspace_free(decay);
}

static void gated_linear_backward_cuda(TensorType type, GatedLinearGradient d, const Real *dout,
                                       const Real *dfinal_state, const GatedLinear *s)
{
    const int64_t D = s->x.D, M = s->x.M, heads = s->x.B * s->x.H;
    const int64_t rows = (s->x.offsets ? 1 : s->x.B) * s->x.N * s->x.H;
    Real *decay = device_workspace(2 * rows * D + heads * D);
    Real *Zg = decay + rows * D, *last = Zg + rows * D;
    Real *columns = gated_linear_states(s, M, D), *lines = gated_linear_states(s, D, M);
    BY_STORAGE(type, T, {
        const T *g = (const T *)dout;
        LAUNCH(gated_linear_decays<T>, blocks_for(heads * D), THREADS, 0, decay, *s);
        LAUNCH(gated_linear_backward_dq<T>, gated_linear_blocks(s, D), GATED_LINEAR_THREADS,
               gated_linear_shared(M), d, Zg, last, g, dfinal_state, decay, lines, *s);
        LAUNCH(gated_linear_backward_dk<T>, gated_linear_blocks(s, D), GATED_LINEAR_THREADS,
               gated_linear_shared(M), d, Zg, last, g, dfinal_state, decay, lines, *s);
        LAUNCH(gated_linear_backward_dv<T>, gated_linear_blocks(s, M), GATED_LINEAR_THREADS,
               gated_linear_shared(D), d, g, dfinal_state, decay, columns, *s);
    });
    device_workspace_free(lines);
    device_workspace_free(columns);
    device_workspace_free(decay);
}

template <TensorType type>
static constexpr GatedLinearKernels gated_linear_table = { call<gated_linear_forward_cuda, type>,
                                                           call<gated_linear_backward_cuda, type> };
const GatedLinearKernels gated_linear_cuda = gated_linear_table<TENSOR_REAL>;
const GatedLinearKernels gated_linear_cuda_bf16 = gated_linear_table<TENSOR_BF16>;
