/* A decode step on CUDA, in two ways; the mathematics is in step.c.
 *
 * Small batches are bound by kernel latency, so a layer is four kernels, each doing all that needs
 * no other block's result:
 *     attend_small_batch     q, k, v of a head; its attention
 *     multiply_small_batch   the output product, and the residual
 *     multiply_small_batch   ff1, and the activation
 *     multiply_small_batch   ff2, and the residual
 * A norm is cheap: every block of the kernel that reads it recomputes it. Blocks prefetch their
 * weights before they wait for the previous kernel. These kernels multiply in Real, whatever the
 * precision.
 *
 * Large batches are bound by memory: cuBLAS computes the products, and attend_large_batch_* reads
 * the recurrent state or KV cache once. */
#include "ext/decode/cuda/products.cuh"
#include "ext/decode/cuda/step_attention.cuh"
#include "ops/cuda/shared/layernorm.cuh"

enum {
    SMALL_BATCH = 8,        /* sequences at most: one accumulator each in multiply_small_batch */
    MULTIPLY_THREADS = 128, /* many blocks, to keep all multiprocessors busy */
    MULTIPLY_WARPS = MULTIPLY_THREADS / WARP,
    RESIDENT_BLOCKS = 4, /* per multiprocessor: enough loads in flight for full bandwidth */
};

/* Elements that fit in the 48 KB of shared memory that a launch gets without an attribute: the
 * threads' sums, a head and a row of x; or rows of x alone. */
enum {
    MAX_PARTS = (16 << 10) / sizeof(Real),
    MAX_HEAD = (16 << 10) / sizeof(Real),
    MAX_ROW = (12 << 10) / sizeof(Real),
    MAX_ROWS = (44 << 10) / sizeof(Real),
};

/* ------------------------------------------------------------------------------------ workspace */

struct Workspace {
    bool small_batch;
    StepBuffers buffers;
    Real *branch;            /* large batch: [B, width] */
    Statistics *statistics;  /* large batch: [B] */
    StepAttention attention; /* without the layer and the tiling */
    int64_t size;            /* elements of all */
};

/* Reserves count elements, aligned for packs. */
static Real *reserve(Workspace *w, Real *scratch, int64_t count)
{
    enum { UNIT = 16 };
    Real *const reserved = scratch && count > 0 ? scratch + w->size : NULL;
    w->size += (count + UNIT - 1) / UNIT * UNIT;
    return reserved;
}

static StepAttention attention_of_sizes(const TransformerState *state)
{
    StepAttention a = {};
    const double D = (double)state->D;
    a.H = (int)state->H;
    a.D = (int)state->D;
    a.F = (int)state->F;
    a.max_length = (int)state->max_length;
    a.features = state->engine[0].features;
    a.scale = (Real)(state->softmax ? 1 / sqrt(D) : pow(D, -0.25));
    a.eps = (Real)ATTENTION_EPS;
    a.counts = state->device_counts;
    return a;
}

/* scratch NULL: computes the size. */
static Workspace workspace_of(const TransformerState *state, Real *scratch)
{
    Workspace w = {};
    StepAttention &a = w.attention = attention_of_sizes(state);
    StepBuffers &b = w.buffers;
    const int64_t row = state->B * state->width, heads = state->B * state->H;
    w.small_batch = state->B <= SMALL_BATCH && row <= MAX_ROWS && state->width <= MAX_ROW;
    b.x = reserve(&w, scratch, row);
    b.normed = reserve(&w, scratch, w.small_batch && is_pre_norm(state) ? 0 : row);
    b.attended = a.attended = reserve(&w, scratch, row);
    b.hidden = reserve(&w, scratch, state->B * state->inner);
    b.packed = reserve(&w, scratch, w.small_batch ? 0 : 3 * row);
    w.branch = reserve(&w, scratch, w.small_batch ? 0 : row);
    w.statistics = (Statistics *)reserve(&w, scratch, w.small_batch ? 0 : 2 * state->B);
    a.memory = reserve(&w, scratch, head_elements(a) > MAX_HEAD ? heads * head_elements(a) : 0);
    a.scores = reserve(&w, scratch, state->softmax ? heads * state->max_length : 0);
    return w;
}

/* --------------------------------------------------------------------------------------- tiling */

/* The tiling of a matrix [rows, C] for blocks of `threads` threads. */
static Tiling tiling_of(int W, int64_t rows, int64_t C, int threads)
{
    Tiling tiling = { (int)C, C < threads ? (int)C : threads, 1 };
    const int64_t row_groups = (rows + W - 1) / W;
    int max_groups = threads / tiling.span;
    max_groups = min(max_groups, MAX_PARTS / (W * tiling.span));
    tiling.groups = row_groups < max_groups ? (int)row_groups : max_groups;
    return tiling;
}

/* Whether blocks of `threads` threads can load a layer's state in packs of four. */
static bool state_in_packs(const TransformerState *state, const StepAttention &a, int threads)
{
    const int64_t C = state->softmax ? state->D : state->D + 1;
    if (C > threads || 4 * C > MAX_PARTS)
        return false;
    if (state->softmax)
        return C % 4 == 0 && packs_fit<4>(a.keys) && packs_fit<4>(a.values);
    return state->F * C % 4 == 0 && packs_fit<4>(a.sums);
}

/* Of layer i. The caller sets the tiling. */
static StepAttention attention_of(const TransformerState *state, const Workspace &w, int64_t i)
{
    StepAttention a = w.attention;
    const Tensor *const projection = state->engine[i].projection;
    a.projection = projection ? projection->data : NULL;
    a.sums = state->layer[i].states[0].data;
    a.keys = state->layer[i].keys.data;
    a.values = state->layer[i].values.data;
    return a;
}

static size_t bytes_of(int64_t elements)
{
    return (size_t)elements * sizeof(Real);
}

/* Elements of shared memory. */
template <int W> static int64_t attention_elements(const StepAttention &a)
{
    return tile_rows<W>(a.tiling) * a.tiling.span + (a.memory ? 0 : head_elements(a));
}

/* --------------------------------------------------------------------------------------- counts */

/* Counts one more position of sequence b. */
__device__ static inline void advance(int32_t *counts, int32_t *positions, int64_t max_length,
                                      int64_t b)
{
    const int32_t count = counts[b] < max_length ? counts[b] + 1 : counts[b];
    counts[b] = count;
    positions[b] = count < max_length ? count : (int32_t)max_length - 1;
}

/* ================================================================================ small batches */

/* moments = mean and 1 / sqrt(variance + eps) of a row x [n], by one warp; y <- x. y may be x. */
__device__ static inline void row_moments(Real *moments, Real *y, const Real *x, Real eps, int n)
{
    enum { PREFETCHED = 8 }; /* loads in flight per lane */
    const int lane = (int)threadIdx.x % WARP;
    Real sum = 0, squares = 0;
    for (int chunk = lane; chunk < n; chunk += PREFETCHED * WARP) {
        Real elements[PREFETCHED];
#pragma unroll
        for (int i = 0; i < PREFETCHED; i++)
            elements[i] = chunk + i * WARP < n ? x[chunk + i * WARP] : (Real)0;
#pragma unroll
        for (int i = 0; i < PREFETCHED; i++) {
            if (chunk + i * WARP < n)
                y[chunk + i * WARP] = elements[i];
            sum += elements[i];
        }
    }
    const Real mean = warp_sum(sum) / (Real)n;
    LANE_FOR(c, n, WARP)
        squares += (y[c] - mean) * (y[c] - mean);
    const Real r = inverse_deviation(warp_sum(squares) / (Real)n, eps);
    if (lane == 0) {
        moments[0] = mean;
        moments[1] = r;
    }
}

/* A norm of rows by a block of BLOCK threads. Each thread prefetches PREFETCHED elements of weight
 * and bias, which arrive before the rows do. */
template <int BLOCK, int PREFETCHED> struct RowNorm {
    StepNorm norm;
    int n;
    Real weight[PREFETCHED], bias[PREFETCHED];

    __device__ RowNorm(const StepNorm &of, int elements) : norm(of), n(elements)
    {
#pragma unroll
        for (int i = 0; i < PREFETCHED; i++) {
            const int c = i * BLOCK + (int)threadIdx.x;
            weight[i] = norm.weight && c < n ? norm.weight[c] : (Real)0;
            bias[i] = norm.weight && c < n ? norm.bias[c] : (Real)0;
        }
    }

    /* Normalizes column c of y [B, n]. */
    __device__ void apply(Real *y, const Real *moments, int B, int c, Real w, Real shift)
    {
        for (int b = 0; b < B && c < n; b++)
            y[b * n + c] = (y[b * n + c] - moments[2 * b]) * moments[2 * b + 1] * w + shift;
    }
};

/* y [B, n] <- norm(x [B, n]), or x if there is no norm. Ends with a barrier; y may be x. */
template <int BLOCK, int PREFETCHED>
__device__ static void norm_rows(Real *y, const Real *x, RowNorm<BLOCK, PREFETCHED> &norm, int B)
{
    __shared__ Real moments[2 * SMALL_BATCH];
    const int n = norm.n;
    for (int b = (int)threadIdx.x / WARP; b < B; b += BLOCK / WARP)
        row_moments(&moments[2 * b], y + b * n, x + b * n, norm.norm.eps, n);
    __syncthreads();
    if (!norm.norm.weight)
        return;
#pragma unroll
    for (int i = 0; i < PREFETCHED; i++)
        norm.apply(y, moments, B, i * BLOCK + (int)threadIdx.x, norm.weight[i], norm.bias[i]);
    for (int c = PREFETCHED * BLOCK + (int)threadIdx.x; c < n; c += BLOCK)
        norm.apply(y, moments, B, c, norm.norm.weight[c], norm.norm.bias[c]);
    __syncthreads();
}

/* Rows of a weight in a warp's registers: chunks of PACKS packs per lane and row. */
template <int W, int ROWS, int PACKS> struct WeightRows {
    enum { CHUNK = WARP * W * PACKS };
    Reals<W> pack[ROWS][PACKS];

    __device__ static int column(int p)
    {
        return (p * WARP + (int)threadIdx.x % WARP) * W;
    }

    /* Loads the columns from `chunk` on of rows of n elements with stride row_step. */
    __device__ void load(const Real *rows, int64_t row_step, int chunk, int n)
    {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int p = 0; p < PACKS; p++)
                if (chunk + column(p) < n)
                    pack[r][p] = load_pack<W>(&rows[r * row_step + chunk + column(p)]);
    }

    /* sums += dot products with the same columns of x [count, n]. */
    template <int COUNT>
    __device__ void add_products(Real (&sums)[ROWS][COUNT], const Real *x, int count, int chunk,
                                 int n)
    {
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            if (chunk + column(p) >= n)
                continue;
#pragma unroll
            for (int b = 0; b < COUNT; b++) {
                if (COUNT > 1 && b >= count)
                    continue;
                const Reals<W> elements = load_pack<W>(&x[b * n + chunk + column(p)]);
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int k = 0; k < W; k++)
                        sums[r][b] += pack[r][p].value[k] * elements.value[k];
            }
        }
    }

    /* sums <- dot products of the rows with x [count, n], in every lane. loaded: the first chunk is
     * already in registers. */
    template <int COUNT>
    __device__ void multiply(Real (&sums)[ROWS][COUNT], const Real *x, int count, const Real *rows,
                             int64_t row_step, int n, bool loaded)
    {
#pragma unroll
        for (int i = 0; i < ROWS * COUNT; i++)
            sums[i / COUNT][i % COUNT] = 0;
        for (int chunk = 0; chunk < n; chunk += CHUNK) {
            if (chunk > 0 || !loaded)
                load(rows, row_step, chunk, n);
            add_products(sums, x, count, chunk, n);
        }
#pragma unroll
        for (int i = 0; i < ROWS * COUNT; i++)
            sums[i / COUNT][i % COUNT] = warp_sum(sums[i / COUNT][i % COUNT]);
    }
};

/* One block per head; each warp computes one element of query, key and value at a time. */
template <int W, bool SOFTMAX>
__global__ void __launch_bounds__(ATTEND_THREADS)
    attend_small_batch(const __grid_constant__ StepAttention a,
                       const __grid_constant__ StepProduct p)
{
    DYNAMIC_SHARED(Real, x);
    let_next_kernel_start();
    const int head = (int)blockIdx.x, b = head / a.H, h = head - b * a.H, width = a.H * a.D;
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const HeadMemory m = block_memory<W>(a, head, x + width);
    const Real *const rows = p.weight + (int64_t)h * a.D * width;
    const Real *const bias = p.bias + h * a.D;
    const int64_t row_step = (int64_t)width * width;
    __shared__ int position;
    if (threadIdx.x == 0)
        position = a.counts[b];

    Reals<W> ahead[1] = {};
    if (!SOFTMAX)
        load_tiles(ahead, a.sums + (int64_t)head * a.F * a.tiling.C, a.tiling,
                   thread_tile<W>(a.tiling, 0), 0, (int)a.F);
    WeightRows<W, 3, 2> weights;
    if (warp < a.D)
        weights.load(rows + warp * width, row_step, 0, width);
    RowNorm<ATTEND_THREADS, 1> norm(p.in.norm, width);
    wait_for_previous_kernel();
    norm_rows(x, p.in.x + b * width, norm, 1);

    for (int d = (int)threadIdx.x; p.in.normed && d < a.D; d += ATTEND_THREADS)
        p.in.normed[head * a.D + d] = x[h * a.D + d];
    for (int d = warp; d < a.D; d += ATTEND_THREADS / WARP) {
        Real sums[3][1];
        weights.multiply(sums, x, 1, rows + d * width, row_step, width, d == warp);
        if (lane == 0) {
            m.query[d] = mapped_element(a, sums[0][0] + bias[d]);
            m.key[d] = mapped_element(a, sums[1][0] + bias[width + d]);
            m.value[d] = sums[2][0] + bias[2 * width + d];
        }
    }
    if constexpr (SOFTMAX)
        attend_softmax<W, ATTEND_THREADS>(a, m, head, position);
    else
        attend_linear(a, m, head, position, ahead);
}

/* One warp per column of out; COUNT: upper bound of B. */
template <int W, int COUNT>
__global__ void __launch_bounds__(MULTIPLY_THREADS, 3) /* with fewer registers it would spill */
    multiply_small_batch(const __grid_constant__ StepProduct p)
{
    DYNAMIC_SHARED(Real, normed);
    let_next_kernel_start();
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int o = (int)blockIdx.x * MULTIPLY_WARPS + warp;
    const Real *const row = p.weight + (int64_t)o * p.I, *x = p.in.x;
    const bool writes = o < p.O && lane < p.B;

    WeightRows<W, 1, 8> weights;
    if (o < p.O)
        weights.load(row, 0, 0, p.I);
    const Real bias = writes ? p.bias[o] : (Real)0;
    RowNorm<MULTIPLY_THREADS, 4> norm(p.in.norm, p.I);
    wait_for_previous_kernel();
    const Real residual = writes && p.residual ? p.residual[lane * p.O + o] : (Real)0;
    if (p.in.norm.weight) {
        norm_rows(normed, x, norm, p.B);
        x = normed;
        for (int i = (int)threadIdx.x; p.in.normed && blockIdx.x == 0 && i < p.B * p.I;
             i += MULTIPLY_THREADS)
            p.in.normed[i] = normed[i];
    }
    if (o >= p.O)
        return;

    Real sums[1][COUNT], sum = 0;
    weights.multiply(sums, x, p.B, row, 0, p.I, true);
#pragma unroll
    for (int b = 0; b < COUNT; b++)
        sum = lane == b ? sums[0][b] : sum;
    if (writes)
        p.out[lane * p.O + o] = activation_of(p.activation, sum + bias) + residual;
}

/* One block per sequence: out [B, width] <- last(norm(x)), each norm if there is one. */
__global__ void __launch_bounds__(MULTIPLY_THREADS)
    finish_small_batch(Real *out, const Real *x, StepNorm norm, StepNorm last, int32_t *counts,
                       int32_t *positions, int64_t max_length, int width)
{
    DYNAMIC_SHARED(Real, y);
    const int b = (int)blockIdx.x;
    RowNorm<MULTIPLY_THREADS, 4> first(norm, width), second(last, width);
    wait_for_previous_kernel();
    norm_rows(y, x + b * width, first, 1);
    norm_rows(y, y, second, 1);
    for (int c = (int)threadIdx.x; c < width; c += MULTIPLY_THREADS)
        out[b * width + c] = y[c];
    if (threadIdx.x == 0)
        advance(counts, positions, max_length, b);
}

/* is_first: this is the step's first kernel, which must wait until all earlier kernels complete. */
template <int W, bool SOFTMAX>
static void launch_attend_small_batch(const TransformerState *state, StepAttention a,
                                      const StepProduct &p, bool is_first)
{
    const unsigned heads = (unsigned)(state->B * state->H);
    a.tiling = SOFTMAX ? tiling_of(W, state->max_length, state->D, ATTEND_THREADS)
                       : tiling_of(W, state->F, state->D + 1, ATTEND_THREADS);
    const size_t bytes = bytes_of(state->width + attention_elements<W>(a));
    if (is_first)
        LAUNCH((attend_small_batch<W, SOFTMAX>), heads, ATTEND_THREADS, bytes, a, p);
    else
        LAUNCH_DEPENDENT((attend_small_batch<W, SOFTMAX>), heads, ATTEND_THREADS, bytes, a, p);
}

static void attention_small_batch(const TransformerState *state, int64_t i, const Workspace &w,
                                  const StepProduct &p)
{
    const StepAttention a = attention_of(state, w, i);
    const bool packs =
        state->width % 4 == 0 && packs_fit<4>(p.weight) && state_in_packs(state, a, ATTEND_THREADS);
    auto launch = packs ? launch_attend_small_batch<4, false> : launch_attend_small_batch<1, false>;
    if (state->softmax)
        launch = packs ? launch_attend_small_batch<4, true> : launch_attend_small_batch<1, true>;
    launch(state, a, p, i == 0);
}

static void product_small_batch(const StepProduct &p)
{
    const bool packs = p.I % 4 == 0 && packs_fit<4>(p.weight) && packs_fit<4>(p.in.x);
    const unsigned blocks = (unsigned)((p.O + MULTIPLY_WARPS - 1) / MULTIPLY_WARPS);
    const size_t bytes = p.in.norm.weight ? bytes_of(p.B * p.I) : 0;
    auto multiply =
        packs ? multiply_small_batch<4, SMALL_BATCH> : multiply_small_batch<1, SMALL_BATCH>;
    if (packs && p.B == 1)
        multiply = multiply_small_batch<4, 1>;
    LAUNCH_DEPENDENT(multiply, blocks, MULTIPLY_THREADS, bytes, p);
}

static void step_small_batch(Real *out, const Real *x, const TransformerState *state,
                             const Workspace &w)
{
    for (int64_t i = 0; i < state->transformer.layers; i++) {
        const LayerProducts products = layer_products(state, i, x, w.buffers);
        attention_small_batch(state, i, w, products.input);
        product_small_batch(products.output);
        product_small_batch(products.ff1);
        product_small_batch(products.ff2);
        x = w.buffers.x;
    }
    LAUNCH_DEPENDENT(finish_small_batch, (unsigned)state->B, MULTIPLY_THREADS,
                     bytes_of(state->width), out, x, last_norm(state), final_norm(state),
                     state->device_counts, state->positions.integers, state->max_length,
                     (int)state->width);
}

/* ================================================================================ large batches
 * A dependent launch requires that the previous kernel waits for its own predecessor
 * (tensor/cuda/kernel.cuh). cuBLAS does not promise that, so these launches are plain. */

/* Loads a head's query, key and value from packed [B, 3 width] = [queries, keys, values]. */
template <int BLOCK>
__device__ static inline void unpack(const StepAttention &a, const HeadMemory &m,
                                     const Real *packed, unsigned b, unsigned h)
{
    const int width = a.H * a.D;
    const Real *const row = packed + (int64_t)b * 3 * width + h * (unsigned)a.D;
    for (int d = (int)(threadIdx.x % BLOCK); d < a.D; d += BLOCK) {
        const Real q = row[d], k = row[width + d], v = row[2 * width + d];
        m.query[d] = mapped_element(a, q);
        m.key[d] = mapped_element(a, k);
        m.value[d] = v;
    }
}

/* One block per head, then the next head. The next head's barrier precedes its first write to sums,
 * which this head's threads still read. */
template <int W>
__global__ void __launch_bounds__(THREADS, RESIDENT_BLOCKS)
    attend_large_batch_softmax(const __grid_constant__ StepAttention a, const Real *packed,
                               unsigned heads)
{
    DYNAMIC_SHARED(Real, shared);
    for (unsigned head = blockIdx.x; head < heads; head += gridDim.x) {
        const unsigned b = head / (unsigned)a.H;
        const HeadMemory m = block_memory<W>(a, head, shared);
        unpack<THREADS>(a, m, packed, b, head - b * (unsigned)a.H);
        attend_softmax<W, THREADS>(a, m, head, a.counts[b]);
    }
}

/* a with the constants D = F = SIZE if SIZE is not 0; phi is elementwise then. */
template <int SIZE> __device__ static inline StepAttention of_size(StepAttention a)
{
    if (SIZE > 0) {
        __builtin_assume(a.features <= FEATURES_SQUARED_RELU);
        a.D = a.F = SIZE;
    }
    return a;
}

/* One warp per block, one head at a time. SIZE as in attend_linear_by_warp. */
template <int SIZE>
__global__ void __launch_bounds__(WARP, SIZE ? 24 : 12) /* as RESIDENT_BLOCKS */
    attend_large_batch_linear(const __grid_constant__ StepAttention given, const Real *packed,
                              unsigned heads)
{
    DYNAMIC_SHARED(Real, shared);
    const StepAttention a = of_size<SIZE>(given);
    for (unsigned head = blockIdx.x; head < heads; head += gridDim.x) {
        Real *const T = a.sums + (int64_t)head * a.F * (a.D + 1), *state = T;
        Real *memory = shared + state_size<SIZE>;
        if constexpr (SIZE > 0)
            load_state<SIZE>(state = shared, T);
        else if (a.memory)
            memory = a.memory + head * head_elements(a);
        const unsigned b = head / (unsigned)a.H;
        const int count = a.counts[b];
        const HeadMemory m = head_memory(a, memory, NULL);
        unpack<WARP>(a, m, packed, b, head - b * (unsigned)a.H);
        wait_for_copies();
        __syncwarp();
        if (count >= a.max_length) {
            write_nan<WARP>(a, head);
            continue;
        }
        if (SIZE == 0 && !maps_elementwise(a.features))
            make_features(a, m);
        attend_linear_by_warp<SIZE>(a, m, state, a.attended + (int64_t)head * a.D);
        __syncwarp(); /* the columns are complete, and the next head may write to m */
        if constexpr (SIZE > 0)
            store_state<SIZE>(T, state);
    }
}

__global__ void advance_large_batch(int32_t *counts, int32_t *positions, int64_t max_length,
                                    int64_t B)
{
    GRID_FOR(b, B)
        advance(counts, positions, max_length, b);
}

template <int W>
static void launch_attend_large_batch_softmax(const TransformerState *state, StepAttention a,
                                              const Real *packed)
{
    const unsigned heads = (unsigned)(state->B * state->H);
    a.tiling = tiling_of(W, state->max_length, state->D, THREADS);
    LAUNCH(attend_large_batch_softmax<W>, blocks_for(heads, 1), THREADS,
           bytes_of(attention_elements<W>(a)), a, packed, heads);
}

template <int SIZE>
static void launch_attend_large_batch_linear(const TransformerState *state, StepAttention a,
                                             const Real *packed)
{
    const unsigned heads = (unsigned)(state->B * state->H);
    const size_t bytes = bytes_of(state_size<SIZE> + (a.memory ? 0 : head_elements(a)));
    LAUNCH(attend_large_batch_linear<SIZE>, blocks_for(heads, 1), WARP, bytes, a, packed, heads);
}

static void attention_large_batch(const TransformerState *state, int64_t i, const Workspace &w)
{
    const StepAttention a = attention_of(state, w, i);
    const bool square = maps_elementwise(a.features) && packs_fit<4>(a.sums); /* F = D */
    auto launch = launch_attend_large_batch_linear<0>;
    if (state->softmax)
        launch = state_in_packs(state, a, THREADS) ? launch_attend_large_batch_softmax<4>
                                                   : launch_attend_large_batch_softmax<1>;
    else if (square && a.D == 32)
        launch = launch_attend_large_batch_linear<32>;
    else if (square && a.D == 64)
        launch = launch_attend_large_batch_linear<64>;
    launch(state, a, w.buffers.packed);
}

/* out = f(in weight^T + bias), as op_linear_activation; without p's norm and residual. */
static void linear(const TransformerState *state, Real *out, const Real *in, const StepProduct &p)
{
    const LinearPass pass = { out, NULL, in,           p.weight,         p.bias,      p.B,
                              p.I, p.O,  p.activation, state->precision, TENSOR_REAL, NULL };
    op_kernels_on(state->device, TENSOR_REAL)->linear_forward(&pass);
}

struct Add {
    __device__ Real operator()(Real a, Real b) const
    {
        return a + b;
    }
};

/* The rows x + branch. */
struct JoinedRows {
    const Real *x, *branch;

    template <int W> bool fits() const
    {
        return packs_fit<W>(x) && packs_fit<W>(branch);
    }
    template <int W> __device__ Reals<W> read(int64_t i, unsigned *) const
    {
        return map_packs<Add, W>(Add(), load_pack<W>(&x[i]), load_pack<W>(&branch[i]));
    }
};

/* The residual stream of a large batch: x + branch. The kernel that reads the sum adds them. */
struct Stream {
    const Real *x, *branch; /* branch NULL: 0 */
};

/* out [B, width] <- norm(x + branch), or x + branch if there is no norm */
static void normalize_large_batch(const TransformerState *state, const Workspace &w, Real *out,
                                  const Stream &s, const StepNorm &norm)
{
    const int64_t B = state->B, width = state->width;
    if (norm.weight && s.branch)
        layernorm_forward(out, w.statistics, JoinedRows{ s.x, s.branch }, norm.weight, norm.bias,
                          norm.eps, B, width);
    else if (norm.weight)
        layernorm_forward(out, w.statistics, PlainRows<Real>{ s.x, NULL, false }, norm.weight,
                          norm.bias, norm.eps, B, width);
    else if (s.branch)
        map_inputs(Add(), out, false, B * width, input_of<Real>(s.x), input_of<Real>(s.branch));
    else
        map_inputs(Identity(), out, false, B * width, input_of<Real>(s.x));
}

/* The input of a branch, norm(s); the branch's result is then added to s. */
static const Real *branch_input(const TransformerState *state, const Workspace &w, Stream *s,
                                const StepNorm &norm)
{
    Real *const sum = w.buffers.x, *const normed = is_pre_norm(state) ? w.buffers.normed : sum;
    if (!norm.weight)
        return s->x;
    if (is_pre_norm(state) && s->branch) {
        normalize_large_batch(state, w, sum, *s, {});
        *s = { sum, NULL };
    }
    normalize_large_batch(state, w, normed, *s, norm);
    if (!is_pre_norm(state))
        *s = { normed, NULL };
    return normed;
}

/* One of a layer's products; one with a residual is a branch's last. */
static void product_large_batch(const TransformerState *state, const Workspace &w, Stream *s,
                                const StepProduct &p)
{
    if (!p.residual) {
        linear(state, p.out, branch_input(state, w, s, p.in.norm), p);
        return;
    }
    linear(state, w.branch, p.in.x, p);
    s->branch = w.branch;
}

static void step_large_batch(Real *out, const Real *x, const TransformerState *state,
                             const Workspace &w)
{
    Stream s = { x, NULL };
    for (int64_t i = 0; i < state->transformer.layers; i++) {
        const LayerProducts products = layer_products(state, i, x, w.buffers);
        product_large_batch(state, w, &s, products.input);
        attention_large_batch(state, i, w);
        product_large_batch(state, w, &s, products.output);
        product_large_batch(state, w, &s, products.ff1);
        product_large_batch(state, w, &s, products.ff2);
    }
    const StepNorm last = last_norm(state), final = final_norm(state);
    if (final.weight)
        branch_input(state, w, &s, last);
    normalize_large_batch(state, w, out, s, final.weight ? final : last);
    LAUNCH(advance_large_batch, blocks_for(state->B), THREADS, 0, state->device_counts,
           state->positions.integers, state->max_length, state->B);
}

/* ------------------------------------------------------------------------------------ launchers */
static void transformer_step_cuda(Real *out, const Real *x, const TransformerState *state)
{
    Real *const scratch = device_workspace(workspace_of(state, NULL).size);
    const Workspace w = workspace_of(state, scratch);
    if (w.small_batch)
        step_small_batch(out, x, state, w);
    else
        step_large_batch(out, x, state, w);
    device_workspace_free(scratch);
}

/* It reads weights as they are. */
const DecodeKernels decode_cuda = { transformer_step_cuda, NULL };
