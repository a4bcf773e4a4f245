/* CUDA kernels of softmax attention: see softmax.c. A thread block owns 64 queries of a head and
 * iterates over their keys; for dk and dv it owns 64 keys and iterates over their queries.
 * softmax_tiles.cuh computes the tiles. */
#include "ops/attention/softmax/softmax.h"
#include "ops/attention/shared/softmax_tiles.cuh"

template <typename T> struct SoftmaxAttention {
    typedef Span Positions;
    typedef Rows<T> Arguments;
    typedef GradientRows<T> Gradients;
    enum { BOUNDS = 0 };
    Rows<T> query, key, value;
    const int32_t *key_lengths; /* [B], or NULL */
    bool causal;
    int64_t B, H;
    Real scale; /* 1 / sqrt D */
};

/* Longest tiles first: under the causal mask the last query tile sees the most keys, and the first
 * key tile is seen by the most queries. */
template <typename T>
__device__ static inline Item item_at(const SoftmaxAttention<T> &a, int64_t index, int64_t tiles,
                                      bool keys)
{
    const int64_t head = index % (a.B * a.H), tile = index / (a.B * a.H);
    return { head / a.H, head % a.H, a.H, (keys ? tile : tiles - 1 - tile) * CHUNK, 0 };
}

template <typename T>
__device__ static inline Span positions_from(const SoftmaxAttention<T> &, const Item &item,
                                             int64_t first, int64_t end)
{
    const int64_t left = end - first;
    return { item.b, item.h, item.H, first, 1, left < 0 ? 0 : left < CHUNK ? (int)left : CHUNK };
}

/* A query tile iterates over the keys below key_length, up to the last key that any of its queries
 * sees; a key tile over the queries, from the first that sees any of its keys. */
template <typename T>
__device__ static inline Pass<Span> pass_of(const SoftmaxAttention<T> &a, const Item &item,
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

template <typename T>
__device__ static inline void load_bounds(int32_t *, const SoftmaxAttention<T> &, const Span &)
{
}

template <typename T>
__device__ static inline bool sees(const SoftmaxAttention<T> &a, const int32_t *,
                                   const Span &queries, int i, const Span &keys, int j)
{
    return i < queries.count && j < keys.count &&
           (!a.causal || keys.first + j <= queries.first + i);
}

template <typename T>
__device__ static inline Real score_of(const SoftmaxAttention<T> &a, Real product, const Span &,
                                       int, const Span &, int)
{
    return a.scale * product;
}

template <int SIZE, typename T>
__device__ static inline void forward_item(const SoftmaxAttention<T> &a, const GradientRows<T> &out,
                                           Real *log_sum, const Item &item, const ForwardMemory &m)
{
    const Pass<Span> pass = pass_of(a, item, false);
    const int row = (int)threadIdx.x / 2;
    const bool first_half = threadIdx.x % 2 == 0;
    RowSums sums_of_row = { (Real)-INFINITY, 0 };
    Real sums[Tile<SIZE>::ROWS][4] = {};
    add_keys<SIZE>(sums, &sums_of_row, a, item, m, pass);
    if (first_half)
        m.factor[row] = 1 / sums_of_row.l;
    if (first_half && item.column == 0 && row < pass.rows.count)
        log_sum[span_row(pass.rows, a.query.positions) + row * a.H] =
            sums_of_row.m + log(sums_of_row.l);
    __syncthreads();
    multiply_rows<SIZE>(sums, m.factor);
    contribute_tile<SIZE>(out, pass.rows, item.column, sums);
}

template <int SIZE, typename T>
__global__ void __launch_bounds__(TILE_THREADS, BLOCKS_AT_ONCE)
    softmax_forward(const __grid_constant__ SoftmaxAttention<T> a,
                    const __grid_constant__ GradientRows<T> out, Real *log_sum,
                    int64_t column_tiles, int64_t tiles, int64_t items)
{
    DYNAMIC_SHARED(Real, memory);
    const ForwardMemory m = forward_layout<SIZE>(memory);
    for (int64_t i = blockIdx.x; i < items; i += gridDim.x)
        forward_item<SIZE>(a, out, log_sum, item_of<SIZE>(a, i, column_tiles, tiles, false), m);
}

/* ------------------------------------------------------------------------------------ launching */

template <typename T> static SoftmaxAttention<T> arguments_of(const AttentionInputs *a, bool causal)
{
    return { rows_of<T>(a->query, a->query_stride, a->N, a->D),
             rows_of<T>(a->key, a->key_stride, a->keys, a->D),
             rows_of<T>(a->value, a->value_stride, a->keys, a->M),
             a->key_lengths,
             causal,
             a->B,
             a->H,
             1 / (Real)sqrt((double)a->D) };
}

template <typename T, int SIZE>
static void forward_sized(Real *out, Real *log_sum, const AttentionInputs *a, bool causal)
{
    const GradientRows<T> rows = gradient_rows<T>({ out, false }, a->H * a->M, a->N, a->M);
    const int64_t column_tiles = tiles_for(a->M, SIZE), tiles = tiles_for(a->N, CHUNK);
    const int64_t items = a->B * a->H * column_tiles * tiles;
    LAUNCH_TILES((softmax_forward<SIZE, T>), items, (forward_memory<SIZE, SoftmaxAttention<T>>()),
                 arguments_of<T>(a, causal), rows, log_sum, column_tiles, tiles, items);
}

template <typename T, int SIZE>
static void backward_sized(AttentionGradient d, const Real *dout, const Real *log_sum,
                           const Real *delta, const AttentionInputs *a, bool causal)
{
    const SoftmaxAttention<T> x = arguments_of<T>(a, causal);
    const Rows<T> g = rows_of<T>(dout, a->H * a->M, a->N, a->M);
    const GradientRows<T> dq = gradient_rows<T>(d.query, a->query_stride, a->N, a->D);
    const GradientRows<T> dk = gradient_rows<T>(d.key, a->key_stride, a->keys, a->D);
    const GradientRows<T> dv = gradient_rows<T>(d.value, a->value_stride, a->keys, a->M);
    launch_backward<SIZE, false, SoftmaxAttention<T>>(
        { x, x.query, g, x.key, x.value, dq, {}, log_sum, delta });
    launch_backward<SIZE, true, SoftmaxAttention<T>>(
        { x, x.key, x.value, x.query, g, dk, dv, log_sum, delta });
}

template <typename T>
static void backward(AttentionGradient d, const Real *dout, const Real *out, const Real *log_sum,
                     Real *delta, const AttentionInputs *a, bool causal)
{
    launch_row_deltas<T>(delta, dout, out, NULL, a->B * a->N * a->H, a->M);
    if (tile_size(a->D, a->M) == 32)
        backward_sized<T, 32>(d, dout, log_sum, delta, a, causal);
    else
        backward_sized<T, WIDEST>(d, dout, log_sum, delta, a, causal);
}

/* delta = -D_i of softmax.c, one number per row */
extern "C" int64_t softmax_attention_scratch_cuda(const AttentionInputs *a, bool backward)
{
    return backward ? a->B * a->N * a->H : 1;
}

extern "C" void softmax_attention_forward_cuda(TensorType type, Real *out, Real *log_sum,
                                               Real *scratch, const AttentionInputs *a, bool causal)
{
    (void)scratch;
    if (tile_size(a->D, a->M) == 32)
        BY_STORAGE(type, T, forward_sized<T, 32>(out, log_sum, a, causal));
    else
        BY_STORAGE(type, T, forward_sized<T, WIDEST>(out, log_sum, a, causal));
}

extern "C" void softmax_attention_backward_cuda(TensorType type, AttentionGradient d,
                                                const Real *dout, const Real *out,
                                                const Real *log_sum, Real *scratch,
                                                const AttentionInputs *a, bool causal)
{
    BY_STORAGE(type, T, backward<T>(d, dout, out, log_sum, scratch, a, causal));
}
