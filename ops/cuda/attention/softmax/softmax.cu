/* CUDA kernels of softmax attention: see softmax.c. A thread block owns 64 queries of a head and
 * iterates over their keys; for dk and dv it owns 64 keys and iterates over their queries.
 * softmax_tiles.cuh computes the tiles. */
#include "ops/cuda/attention/shared/softmax_tiles.cuh"
#include "ops/kernels.h"

/* MASKED: with an additive mask, which may exclude all keys of a query. */
template <typename T, bool MASKED> struct SoftmaxAttention {
    typedef Span Positions;
    typedef T Gradient;
    enum { BOUNDS = 0, NOTHING_VISIBLE = MASKED };
    Rows<T> query, key, value;
    const int32_t *key_lengths; /* [B], or NULL */
    bool causal;
    int64_t B, H;
    Real scale; /* 1 / sqrt D */
    const Real *mask;
    int64_t mask_sequence_stride, mask_head_stride;
};

/* Longest tiles first: under the causal mask the last query tile has the most visible keys, and the
 * first key tile the most queries. */
template <typename T, bool MASKED>
__device__ static inline Item item_at(const SoftmaxAttention<T, MASKED> &a, int64_t index,
                                      int64_t tiles, bool keys)
{
    const int64_t head = index % (a.B * a.H), tile = index / (a.B * a.H);
    return { head / a.H, head % a.H, a.H, (keys ? tile : tiles - 1 - tile) * CHUNK, 0 };
}

template <typename T, bool MASKED>
__device__ static inline Span positions_from(const SoftmaxAttention<T, MASKED> &, const Item &item,
                                             int64_t first, int64_t end)
{
    const int64_t left = end - first;
    return { item.b, item.h, item.H, first, 1, left < 0 ? 0 : left < CHUNK ? (int)left : CHUNK };
}

/* A query tile iterates over the keys below key_length, up to the last key that is visible to
 * any of its queries; a key tile over the queries, from the first that attends to any of its
 * keys. */
template <typename T, bool MASKED>
__device__ static inline Pass<Span> pass_of(const SoftmaxAttention<T, MASKED> &a, const Item &item,
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

template <typename T, bool MASKED>
__device__ static inline void load_bounds(int32_t *, const SoftmaxAttention<T, MASKED> &,
                                          const Span &)
{
}

template <typename T, bool MASKED>
__device__ static inline bool attends_to(const SoftmaxAttention<T, MASKED> &a, const int32_t *,
                                         const Span &queries, int i, const Span &keys, int j)
{
    return i < queries.count && j < keys.count &&
           (!a.causal || keys.first + j <= queries.first + i);
}

template <typename T, bool MASKED>
__device__ static inline Real score_of(const SoftmaxAttention<T, MASKED> &a, Real product,
                                       const Span &queries, int i, const Span &keys, int j)
{
    if (!MASKED)
        return a.scale * product;
    const Real *mask = a.mask + queries.b * a.mask_sequence_stride + queries.h * a.mask_head_stride;
    return a.scale * product + mask[(queries.first + i) * a.key.positions + keys.first + j];
}

template <typename T, bool MASKED> struct SoftmaxForward {
    typedef SoftmaxAttention<T, MASKED> Kind;
    enum { BLOCKS = BLOCKS_AT_ONCE };
    Kind a;
    GradientRows<T> out;
    Real *log_sum, nothing;

    template <int SIZE> __device__ RowSums start_sums(Real (*)[4], const Span &, int64_t) const
    {
        return { MASKED ? -(Real)FLT_MAX : -(Real)INFINITY, 0 }; /* see attention_lowest */
    }
    template <int SIZE>
    __device__ void store_sums(const Span &queries, int64_t column, Real (*sums)[4],
                               const Real *) const
    {
        contribute_tile<SIZE>(out, queries, column, sums);
    }
};

/* ------------------------------------------------------------------------------------ launching */

template <typename T, bool MASKED>
static SoftmaxAttention<T, MASKED> arguments_of(const AttentionInputs *a, bool causal)
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
             a->mask_head_stride };
}

template <typename T, int SIZE, bool MASKED>
static void forward(Real *out, Real *log_sum, const AttentionInputs *a, bool causal)
{
    launch_forward<SIZE>(
        SoftmaxForward<T, MASKED>{ arguments_of<T, MASKED>(a, causal),
                                   gradient_rows<T>({ out, false }, a->H * a->M, a->N, a->M),
                                   log_sum, 0 },
        a->B * a->H);
}

template <typename T, int SIZE, bool MASKED>
static void backward(AttentionGradient d, const Real *dout, const Real *out, const Real *log_sum,
                     const AttentionInputs *a, bool causal)
{
    Real *delta = device_workspace(a->B * a->N * a->H); /* -D_i of softmax.c */
    launch_row_deltas<T>(delta, dout, out, NULL, a->B * a->N * a->H, a->M);
    launch_gradients<SIZE>(
        arguments_of<T, MASKED>(a, causal), rows_of<T>(dout, a->H * a->M, a->N, a->M),
        gradient_rows<T>(d.query, a->query_stride, a->N, a->D),
        gradient_rows<T>(d.key, a->key_stride, a->keys, a->D),
        gradient_rows<T>(d.value, a->value_stride, a->keys, a->M), log_sum, delta, a->B * a->H);
    device_workspace_free(delta);
}

extern "C" void softmax_attention_forward_cuda(TensorType type, Real *out, Real *log_sum,
                                               const AttentionInputs *a, bool causal)
{
    BY_TYPE_AND_TILE_SIZE(
        type, a->D, a->M,
        (a->mask ? forward<T, SIZE, true> : forward<T, SIZE, false>)(out, log_sum, a, causal));
}

extern "C" void softmax_attention_backward_cuda(TensorType type, AttentionGradient d,
                                                const Real *dout, const Real *out,
                                                const Real *log_sum, const AttentionInputs *a,
                                                bool causal)
{
    BY_TYPE_AND_TILE_SIZE(type, a->D, a->M,
                          (a->mask ? backward<T, SIZE, true>
                                   : backward<T, SIZE, false>)(d, dout, out, log_sum, a, causal));
}
