/* CUDA kernels of softmax attention: see softmax.c. A thread block owns 64 queries of a head and
 * iterates over their keys; for dk and dv it owns 64 keys and iterates over their queries.
 * softmax_tiles.cuh computes the tiles. */
#include "ops/cuda/shared/row_deltas.cuh"
#include "ops/cuda/shared/softmax_tiles.cuh"
#include "ops/kernels.h"

/* BIASED: with an additive mask, which may exclude all keys of a query, or with a decay. */
template <typename T, bool BIASED> struct SoftmaxAttention {
    typedef Span Positions;
    typedef T Gradient;
    enum { BOUNDS = 0, NOTHING_VISIBLE = BIASED, SCORE_SUMS = BIASED, WEIGHTED = false };
    Rows<T> query, key, value;
    const int32_t *key_lengths; /* [B], or NULL */
    bool causal;
    int64_t B, H;
    Real scale; /* 1 / sqrt D */
    const Real *mask;
    int64_t mask_sequence_stride, mask_head_stride;
    const Real *A, *A_rest; /* [B, N, H]: c_i = A[i] + A_rest[i]; NULL without a decay */
    Real *dc;               /* [B, N, H], or NULL */
};

/* Longest tiles first: under the causal mask the last query tile has the most visible keys, and the
 * first key tile the most queries. */
template <typename T, bool BIASED>
__device__ static inline Item item_at(const SoftmaxAttention<T, BIASED> &a, int64_t index,
                                      int64_t tiles, bool keys)
{
    const int64_t head = index % (a.B * a.H), tile = index / (a.B * a.H);
    return { head / a.H, head % a.H, a.H, (keys ? tile : tiles - 1 - tile) * CHUNK, 0 };
}

template <typename T, bool BIASED>
__device__ static inline Span positions_from(const SoftmaxAttention<T, BIASED> &, const Item &item,
                                             int64_t first, int64_t end)
{
    const int64_t left = end - first;
    return { item.b, item.h, item.H, first, 1, left < 0 ? 0 : left < CHUNK ? (int)left : CHUNK };
}

/* A query tile iterates over the keys below key_length, up to the last key that is visible to
 * any of its queries; a key tile over the queries, from the first that attends to any of its
 * keys. */
template <typename T, bool BIASED>
__device__ static inline Pass<Span> pass_of(const SoftmaxAttention<T, BIASED> &a, const Item &item,
                                            bool keys)
{
    const int64_t N = a.query.positions;
    const int64_t length = a.key_lengths ? a.key_lengths[item.b] : a.key.positions;
    const Span rows = positions_from(a, item, item.first, keys ? length : N);
    if (keys)
        return { rows, positions_from(a, item, item.first, a.key.positions),
                 a.causal ? item.first : 0, rows.count > 0 ? N : 0 };
    const int64_t last = rows.first + rows.count;
    return { rows, rows, 0, a.causal && last < length ? last : length };
}

template <typename T, bool BIASED>
__device__ static inline void load_bounds(int32_t *, const SoftmaxAttention<T, BIASED> &,
                                          const Span &)
{
}

template <typename T, bool BIASED>
__device__ static inline bool attends_to(const SoftmaxAttention<T, BIASED> &a, const int32_t *,
                                         const Span &queries, int i, const Span &keys, int j)
{
    return i < queries.count && j < keys.count &&
           (!a.causal || keys.first + j <= queries.first + i);
}

template <typename T, bool BIASED>
__device__ static inline Real score_of(const SoftmaxAttention<T, BIASED> &a, Real product,
                                       const Span &queries, int i, const Span &keys, int j)
{
    Real score = a.scale * product;
    if (BIASED && a.mask)
        score += a.mask[queries.b * a.mask_sequence_stride + queries.h * a.mask_head_stride +
                        (queries.first + i) * a.key.positions + keys.first + j];
    if (BIASED && a.A) {
        const int64_t N = a.query.positions;
        const int64_t query = span_row(queries, N) + span_offset(queries, i) * a.H;
        const int64_t key = span_row(keys, N) + span_offset(keys, j) * a.H;
        score += a.A[query] - a.A[key] + (a.A_rest[query] - a.A_rest[key]);
    }
    return score;
}

/* dc = the sums of dS over the keys of each query; then the sums over the queries of each key are
 * subtracted. */
template <typename T, bool BIASED>
__device__ static inline void store_score_sum(const SoftmaxAttention<T, BIASED> &a,
                                              const Span &rows, int row, Real sum, bool keys)
{
    Real *dc = a.dc + span_row(rows, a.query.positions) + span_offset(rows, row) * a.H;
    *dc = keys ? *dc - sum : sum;
}

template <typename T, bool BIASED> struct SoftmaxForward {
    typedef SoftmaxAttention<T, BIASED> Kind;
    enum { BLOCKS = BLOCKS_AT_ONCE };
    Kind a;
    GradientRows<T> out;
    Real *m, *inverse;

    template <int SIZE> __device__ RowSums start_sums(Real (*)[4], const Span &, int64_t) const
    {
        return { BIASED ? -(Real)FLT_MAX : -(Real)INFINITY, 0 }; /* see attention_lowest */
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

template <typename T, bool BIASED>
static SoftmaxAttention<T, BIASED> arguments_of(const AttentionInputs *a, bool causal, Real *A,
                                                Real *dc)
{
    return { rows_of<T>(a->query, a->query_stride, a->N, a->D),
             rows_of<T>(a->key, a->key_stride, a->keys, a->D),
             rows_of<T>(a->value, a->value_stride, a->keys, a->M),
             a->key_lengths,
             causal,
             a->B,
             a->H,
             1 / (Real)sqrt((double)a->D),
             a->mask,
             a->mask_sequence_stride,
             a->mask_head_stride,
             A,
             A ? A + a->B * a->H * a->N : NULL,
             dc };
}

template <typename T, int SIZE, bool BIASED>
static void forward(Real *out, Real *m, Real *inverse, const AttentionInputs *a, bool causal)
{
    Real *A = decay_sums(a);
    launch_forward<SIZE>(
        SoftmaxForward<T, BIASED>{ arguments_of<T, BIASED>(a, causal, A, NULL),
                                   gradient_rows<T>({ out, false }, a->H * a->M, a->N, a->M), m,
                                   inverse },
        a->B * a->H);
    device_workspace_free(A);
}

template <typename T, int SIZE, bool BIASED>
static void backward(AttentionGradient d, Real *dc, const Real *dout, const Real *out,
                     const Real *m, const Real *inverse, const AttentionInputs *a, bool causal)
{
    Real *A = decay_sums(a);
    Real *delta = device_workspace(a->B * a->N * a->H); /* -D_i of softmax.c */
    launch_row_deltas<T>(delta, dout, out, NULL, a->B * a->N * a->H, a->M);
    launch_gradients<SIZE>(arguments_of<T, BIASED>(a, causal, A, dc),
                           { rows_of<T>(dout, a->H * a->M, a->N, a->M), m, inverse, delta },
                           gradient_rows<T>(d.query, a->query_stride, a->N, a->D),
                           gradient_rows<T>(d.key, a->key_stride, a->keys, a->D),
                           gradient_rows<T>(d.value, a->value_stride, a->keys, a->M), a->B * a->H);
    device_workspace_free(delta);
    device_workspace_free(A);
}

extern "C" void softmax_attention_forward_cuda(TensorType type, Real *out, Real *m, Real *inverse,
                                               const AttentionInputs *a, bool causal)
{
    BY_TYPE_AND_TILE_SIZE(type, a->D, a->M,
                          (a->mask || a->log_decay
                               ? forward<T, SIZE, true>
                               : forward<T, SIZE, false>)(out, m, inverse, a, causal));
}

extern "C" void softmax_attention_backward_cuda(TensorType type, AttentionGradient d, Real *dc,
                                                const Real *dout, const Real *out, const Real *m,
                                                const Real *inverse, const AttentionInputs *a,
                                                bool causal)
{
    BY_TYPE_AND_TILE_SIZE(type, a->D, a->M,
                          (a->mask || a->log_decay ? backward<T, SIZE, true>
                                                   : backward<T, SIZE, false>)(d, dc, dout, out, m,
                                                                               inverse, a, causal));
}
