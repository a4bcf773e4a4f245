/* The states between the pieces of a head: sums of the pieces, then their prefix sums. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_STATE_SUMS_CUH
#define TAPEGRAD_OPS_ATTENTION_LINEAR_STATE_SUMS_CUH

#include "ops/cuda/attention/linear/scan_arguments.cuh"

/* e^x as a sum of two: rounded to one, the product over many chunks would drift. */
__device__ static inline float2 split_exp(double x)
{
    const double value = exp(x);
    const float high = (float)value;
    return { high, (float)(value - (double)high) };
}

/* The rows of a tile y decay to the end of their chunk. */
template <int SIZE> __device__ static inline void decay_to_end(Real *y, const double *L, int count)
{
    for (int i = (int)threadIdx.x; i < count * SIZE; i += TILE_THREADS)
        y[i / SIZE * Tile<SIZE>::PITCH + i % SIZE] *= real_exp((Real)(L[CHUNK] - L[i / SIZE]));
}

/* The tile of a state [D, W] from row y_first and column w_first on; column: of z, or r */
template <typename T, int SIZE>
__device__ static inline void store_state(Real *to, const Real (*state)[4], Real column,
                                          int64_t y_first, int64_t w_first, const Scans<T> &all)
{
    for (int r = 0; r < Tile<SIZE>::OUTER; r++)
        for (int c = 0; c < 4; c++) {
            const int64_t d = y_first + outer_row<SIZE>(r);
            const int64_t m = w_first + tile_column<SIZE>() + c;
            if (d < all.D && m < all.M)
                to[d * all.W + m] = state[r][c];
        }
    const int64_t d = y_first + threadIdx.x;
    if (w_first == 0 && threadIdx.x < SIZE && d < all.D && all.W > all.M)
        to[d * all.W + all.M] = column;
}

/* One tile of S~ or R~ per block, over one piece */
template <typename T, int SIZE>
__global__ void __launch_bounds__(TILE_THREADS, BLOCKS_AT_ONCE)
    sum_pieces(const __grid_constant__ Scans<T> all, int64_t y_tiles, int64_t w_tiles,
               int64_t items)
{
    DYNAMIC_SHARED(Real, y);
    __shared__ double L[CHUNK + 1];
    enum { PITCH = Tile<SIZE>::PITCH };
    Real *const w = y + CHUNK * PITCH, *const last = w + CHUNK * SIZE;
    const Line &line = all.sums_line;
    const int thread = (int)threadIdx.x;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const int64_t w_first = item % w_tiles * SIZE, y_first = item / w_tiles % y_tiles * SIZE;
        const int64_t rest = item / w_tiles / y_tiles, piece = rest / all.sums_count;
        const StateSums<T> &sums = all.sums[rest % all.sums_count];
        if (!sums.states)
            continue;
        const Head head = head_of_piece(line, (int32_t)piece, sums.y.positions);
        const int64_t first = (piece - head.first) * line.length;
        const int64_t most = sums.y.lengths ? sums.y.lengths[head.b] : head.positions;
        const int64_t end = min(first + line.length, most);
        Real state[Tile<SIZE>::OUTER][4] = {}, column = 0;
        for (int64_t start = first; start < end; start += CHUNK) {
            const Span span = chunk_span(line, head, sums.reverse, start, end);
            load_tile<SIZE>(y, PITCH, sums.y, span, y_first);
            load_tile<SIZE>(w, SIZE, sums.w, span, w_first);
            load_last(last, sums.w, span);
            load_decay(L, all, span, sums.y.positions);
            __syncthreads();
            if (all.log_decay) { /* rows decay to the piece's end: it is one chunk */
                decay_to_end<SIZE>(y, L, span.count);
                if (w_first == 0 && y_first == 0 && thread == 0)
                    sums.decays[piece] = split_exp(L[CHUNK]);
                __syncthreads();
            }
            add_outer<SIZE>(state, y, w, span.count);
            for (int j = 0; thread < SIZE && j < span.count; j++)
                column += y[j * PITCH + thread] * last[j];
            __syncthreads();
        }
        if (all.log_decay && first >= end && w_first == 0 && y_first == 0 && thread == 0)
            sums.decays[piece] = { 1, 0 };
        store_state<T, SIZE>(sums.states + piece * all.D * all.W, state, column, y_first, w_first,
                             all);
    }
}

/* The states become prefix sums over each head's pieces, the initial state included. */
template <typename T>
__global__ void prefix_sum_pieces(const __grid_constant__ Scans<T> all, int64_t items)
{
    GRID_FOR(item, items) {
        const int64_t size = all.D * all.W, elements = items / all.sums_count;
        const int64_t i = item % elements;
        const StateSums<T> &sums = all.sums[item / elements];
        if (!sums.states)
            continue;
        const Head head = head_at(all.sums_line, (int32_t)(i / size), sums.y.positions);
        const int64_t element = head.index * size + i % size;
        Real sum = sums.initial ? sums.initial[element] : (Real)0;
#pragma unroll 4
        for (int64_t piece = head.first; piece < head.end; piece++) {
            const float2 decay = sums.decays ? sums.decays[piece] : float2{ 1, 0 };
            const Real low = (Real)decay.y * sum + sums.states[piece * size + i % size];
            sum = (Real)decay.x * sum + low;
            sums.states[piece * size + i % size] = sum;
        }
        if (sums.final)
            sums.final[element] = sum;
    }
}

/* Launches the sums of S~ and R~, as far as they are needed. */
template <typename T, int SIZE> static void launch_sums(const Scans<T> &all)
{
    const int64_t y_tiles = tiles_for(all.D, SIZE), w_tiles = tiles_for(all.M, SIZE);
    const int64_t items = all.sums_count * pieces_in_all(all.sums_line) * y_tiles * w_tiles;
    const int64_t elements = all.sums_count * all.line.B * all.line.H * all.D * all.W;
    const bool final = all.sums[0].final || all.sums[1].final;
    if (!all.sums[0].states && !all.sums[1].states)
        return;
    LAUNCH_TILES((sum_pieces<T, SIZE>), items, CHUNK * (Tile<SIZE>::PITCH + SIZE + 1), all, y_tiles,
                 w_tiles, items);
    if (all.sums_line.pieces > 1 || final || all.reads_all_states)
        LAUNCH(prefix_sum_pieces<T>, blocks_for(elements), THREADS, 0, all, elements);
}

#endif
