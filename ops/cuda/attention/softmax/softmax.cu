/* CUDA kernels of softmax attention: see softmax.c. A thread block owns 64 queries of a head and
 * iterates over their keys; for dk and dv it owns 64 keys and iterates over their queries.
 * softmax_tiles.cuh computes the tiles. */
#include "ops/attention/softmax/visible.h"
#include "ops/cuda/shared/row_deltas.cuh"
#include "ops/cuda/shared/softmax_tiles.cuh"
#include "ops/kernels.h"

/* BIASED: with an additive mask or a decay. LIMITED: with a window, a prefix or documents, and
 * maybe those. Both may exclude all keys of a query, in a tile or in all. */
enum { UNBIASED, BIASED, LIMITED };

template <typename T, int FORM> struct SoftmaxAttention {
    typedef Span Positions;
    typedef T Gradient;
    enum {
        BOUNDS = FORM == LIMITED ? 4 : 0, /* of VisibleColumns */
        NOTHING_VISIBLE = FORM != UNBIASED,
        SCORE_SUMS = FORM != UNBIASED,
        WEIGHTED = false
    };
    Rows<T> query, key, value;
    const int32_t *key_lengths; /* [B], or NULL */
    Visibility visibility;      /* without key lengths */
    int64_t B, H;
    Real scale; /* 1 / sqrt D */
    const Real *mask;
    int64_t mask_sequence_stride, mask_head_stride;
    const Real *sink_logits; /* [H], or NULL */
    const Real *A, *A_rest;  /* [B, N, H]: c_i = A[i] + A_rest[i]; NULL without a decay */
    Real *dc;                /* [B, N, H], or NULL */
};

/* Longest tiles first: under the causal mask the last query tile has the most visible keys, and the
 * first key tile the most queries. */
template <typename T, int FORM>
__device__ static inline Item item_at(const SoftmaxAttention<T, FORM> &a, int64_t index,
                                      int64_t tiles, bool keys)
{
    const int64_t head = index % (a.B * a.H), tile = index / (a.B * a.H);
    return { head / a.H, head % a.H, a.H, (keys ? tile : tiles - 1 - tile) * CHUNK, 0 };
}

template <typename T, int FORM>
__device__ static inline Span positions_from(const SoftmaxAttention<T, FORM> &, const Item &item,
                                             int64_t first, int64_t end)
{
    const int64_t left = end - first;
    return { item.b, item.h, item.H, first, 1, left < 0 ? 0 : left < CHUNK ? (int)left : CHUNK };
}

template <typename T, int FORM>
__device__ static inline Visibility visibility_at(const SoftmaxAttention<T, FORM> &a, int64_t b)
{
    Visibility v = a.visibility;
    if (a.key_lengths)
        v.keys = a.key_lengths[b];
    return v;
}

/* A query tile iterates over the keys that are visible to any of its queries; a key tile over the
 * queries that attend to any of its keys. */
template <typename T, int FORM>
__device__ static inline Pass<Span> pass_of(const SoftmaxAttention<T, FORM> &a, const Item &item,
                                            bool keys)
{
    const Visibility v = visibility_at(a, item.b);
    const Span rows = positions_from(a, item, item.first, keys ? v.keys : v.N);
    const int64_t last = rows.first + rows.count - 1;
    if (keys) {
        const PositionRange queries =
            rows.count > 0 ? visible_rows_of_tile(&v, rows.first, last) : PositionRange{ 0, 0 };
        return { rows, positions_from(a, item, item.first, a.key.positions), queries.begin,
                 queries.end };
    }
    const VisibleColumns columns = visible_columns_of_tile(&v, rows.first, last);
    return { rows, rows, columns.first, columns.end, columns.sinks_end, columns.begin };
}

template <typename T, int FORM>
__device__ static inline void load_bounds(int32_t *bounds, const SoftmaxAttention<T, FORM> &a,
                                          const Span &queries)
{
    const int i = (int)threadIdx.x;
    if (FORM != LIMITED || i >= CHUNK)
        return;
    const Visibility v = visibility_at(a, queries.b);
    VisibleColumns columns = { 0, 0, 0, 0 };
    if (i < queries.count)
        columns = visible_columns(&v, queries.first + i);
    bounds[i] = (int32_t)columns.first;
    bounds[CHUNK + i] = (int32_t)columns.sinks_end;
    bounds[2 * CHUNK + i] = (int32_t)columns.begin;
    bounds[3 * CHUNK + i] = (int32_t)columns.end;
}

template <typename T, int FORM>
__device__ static inline bool attends_to(const SoftmaxAttention<T, FORM> &a, const int32_t *bounds,
                                         const Span &queries, int i, const Span &keys, int j)
{
    const int64_t key = keys.first + j;
    if (FORM == LIMITED)
        return j < keys.count && ((bounds[i] <= key && key < bounds[CHUNK + i]) ||
                                  (bounds[2 * CHUNK + i] <= key && key < bounds[3 * CHUNK + i]));
    return i < queries.count && j < keys.count &&
           (!a.visibility.causal || key <= queries.first + i);
}

template <typename T, int FORM>
__device__ static inline Real score_of(const SoftmaxAttention<T, FORM> &a, Real product,
                                       const Span &queries, int i, const Span &keys, int j)
{
    Real score = a.scale * product;
    if (FORM != UNBIASED && a.mask)
        score += a.mask[queries.b * a.mask_sequence_stride + queries.h * a.mask_head_stride +
                        (queries.first + i) * a.key.positions + keys.first + j];
    if (FORM != UNBIASED && a.A) {
        const int64_t N = a.query.positions;
        const int64_t query = span_row(queries, N) + span_offset(queries, i) * a.H;
        const int64_t key = span_row(keys, N) + span_offset(keys, j) * a.H;
        score += a.A[query] - a.A[key] + (a.A_rest[query] - a.A_rest[key]);
    }
    return score;
}

/* dc = the sums of dS over the keys of each query; then the sums over the queries of each key are
 * subtracted. */
template <typename T, int FORM>
__device__ static inline void store_score_sum(const SoftmaxAttention<T, FORM> &a, const Span &rows,
                                              int row, Real sum, bool keys)
{
    Real *dc = a.dc + span_row(rows, a.query.positions) + span_offset(rows, row) * a.H;
    *dc = keys ? *dc - sum : sum;
}

template <typename T, int FORM> struct SoftmaxForward {
    typedef SoftmaxAttention<T, FORM> Kind;
    enum { BLOCKS = BLOCKS_AT_ONCE };
    Kind a;
    GradientRows<T> out;
    Real *m, *inverse;

    template <int SIZE>
    __device__ RowSums start_sums(Real (*)[4], const Span &queries, int64_t) const
    {
        const Real lowest = FORM != UNBIASED ? -(Real)FLT_MAX : -(Real)INFINITY;
        const RowStart start = row_start(a.sink_logits, queries.h, lowest); /* attention_lowest */
        return { start.m, start.l };
    }
    template <int SIZE>
    __device__ void store_sums(const Span &queries, int64_t column, Real (*sums)[4],
                               const Real *) const
    {
        contribute_tile<SIZE>(out, queries, column, sums);
    }
};

/* The sums A of the log decays as pairs of Reals, as on the CPU: a thread block per head, whose
 * threads have a run of positions each. A log decay above 0 makes its sum and later ones NaN. */
__global__ void sum_decays(Real *A, Real *A_rest, const Real *log_decay, const int32_t *key_lengths,
                           int64_t heads, int64_t N, int64_t H)
{
    __shared__ double total[THREADS];
    const int64_t run = (N + THREADS - 1) / THREADS, first = threadIdx.x * run;
    for (int64_t head = blockIdx.x; head < heads; head += gridDim.x) {
        const int64_t b = head / H, start = b * N * H + head % H;
        const int64_t length = key_lengths ? key_lengths[b] : N;
        double sum = 0;
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t i = first; i < first + run && i < N; i++) {
                const double l = i < length ? (double)log_decay[start + i * H] : 0;
                sum += l > 0 ? (double)NAN : l < -1e4 ? -1e4 : l;
                if (pass == 1) {
                    A[start + i * H] = (Real)sum;
                    A_rest[start + i * H] = (Real)(sum - (double)(Real)sum);
                }
            }
            total[threadIdx.x] = sum;
            __syncthreads();
            sum = 0;
            for (int thread = 0; pass == 0 && thread < (int)threadIdx.x; thread++)
                sum += total[thread];
            __syncthreads();
        }
    }
}

/* dsink [rows] = p_i delta_i, of rows of H heads; delta is -D_i. */
__global__ void sink_gradients(Real *dsink, const Real *sink_logits, const Real *m,
                               const Real *inverse, const Real *delta, int64_t rows, int64_t H)
{
    GRID_FOR(i, rows)
        dsink[i] = exp(sink_logits[i % H] - m[i]) * inverse[i] * delta[i];
}

/* ------------------------------------------------------------------------------------ launching */

/* Computes A and A_rest, which the caller frees; NULL without a decay. */
static Real *decay_sums(const AttentionInputs *a)
{
    const int64_t heads = a->B * a->H;
    Real *A = a->log_decay ? device_workspace(2 * heads * a->N) : NULL;
    if (A)
        LAUNCH(sum_decays, blocks_for(heads, 1), THREADS, 0, A, A + heads * a->N, a->log_decay,
               a->key_lengths, heads, a->N, a->H);
    return A;
}

template <typename T, int FORM>
static SoftmaxAttention<T, FORM> arguments_of(const AttentionInputs *a, bool causal, Real *A,
                                              Real *dc)
{
    AttentionInputs all = *a;
    all.key_lengths = NULL;
    return { rows_of<T>(a->query, a->query_stride, a->N, a->D),
             rows_of<T>(a->key, a->key_stride, a->keys, a->D),
             rows_of<T>(a->value, a->value_stride, a->keys, a->M),
             a->key_lengths,
             visibility_of(&all, causal, 0),
             a->B,
             a->H,
             1 / (Real)sqrt((double)a->D),
             a->mask,
             a->mask_sequence_stride,
             a->mask_head_stride,
             a->sink_logits,
             A,
             A ? A + a->B * a->H * a->N : NULL,
             dc };
}

template <typename T, int SIZE, int FORM>
static void forward(Real *out, Real *m, Real *inverse, const AttentionInputs *a, bool causal)
{
    Real *A = decay_sums(a);
    launch_forward<SIZE>(
        SoftmaxForward<T, FORM>{ arguments_of<T, FORM>(a, causal, A, NULL),
                                 gradient_rows<T>({ out, false }, a->H * a->M, a->N, a->M), m,
                                 inverse },
        a->B * a->H);
    device_workspace_free(A);
}

template <typename T, int SIZE, int FORM>
static void backward(AttentionGradient d, Real *dc, Real *dsink, const Real *dout, const Real *out,
                     const Real *m, const Real *inverse, const AttentionInputs *a, bool causal)
{
    const int64_t rows = a->B * a->N * a->H;
    Real *A = decay_sums(a);
    Real *delta = device_workspace(rows); /* -D_i of softmax.c */
    launch_row_deltas<T>(delta, dout, out, NULL, rows, a->M);
    if (dsink)
        LAUNCH(sink_gradients, blocks_for(rows, THREADS), THREADS, 0, dsink, a->sink_logits, m,
               inverse, delta, rows, a->H);
    launch_gradients<SIZE>(arguments_of<T, FORM>(a, causal, A, dc),
                           { rows_of<T>(dout, a->H * a->M, a->N, a->M), m, inverse, delta },
                           gradient_rows<T>(d.query, a->query_stride, a->N, a->D),
                           gradient_rows<T>(d.key, a->key_stride, a->keys, a->D),
                           gradient_rows<T>(d.value, a->value_stride, a->keys, a->M), a->B * a->H);
    device_workspace_free(delta);
    device_workspace_free(A);
}

/* f<T, SIZE, FORM> for the inputs' FORM */
#define BY_FORM(a, f)                                                                              \
    (attention_is_limited(a)       ? f<T, SIZE, LIMITED>                                           \
     : (a)->mask || (a)->log_decay ? f<T, SIZE, BIASED>                                            \
                                   : f<T, SIZE, UNBIASED>)

extern "C" void softmax_attention_forward_cuda(TensorType type, Real *out, Real *m, Real *inverse,
                                               const AttentionInputs *a, bool causal)
{
    BY_TYPE_AND_TILE_SIZE(type, a->D, a->M, BY_FORM(a, forward)(out, m, inverse, a, causal));
}

extern "C" void softmax_attention_backward_cuda(TensorType type, AttentionGradient d, Real *dc,
                                                Real *dsink, const Real *dout, const Real *out,
                                                const Real *m, const Real *inverse,
                                                const AttentionInputs *a, bool causal)
{
    BY_TYPE_AND_TILE_SIZE(type, a->D, a->M,
                          BY_FORM(a, backward)(d, dc, dsink, dout, out, m, inverse, a, causal));
}
