/* op_sample on CUDA: see ext/sampling/sample.c. A row is processed by LANES threads, a warp or a
 * block of THREADS, as in ops/cuda/shared/rows.cuh; all of them must call. And normal numbers. */
#include "ext/sampling/kernels.h"
#include "ops/cuda/shared/rows.cuh"

struct Row {
    const Real *logits;
    int64_t C;
    Real largest, temperature;
};

__device__ static inline uint64_t weight_of(const Row &row, Real logit)
{
    return symbol_weight(logit, row.largest, row.temperature);
}

template <int LANES> __device__ static inline uint64_t count_of_row(uint64_t value)
{
    return LANES == WARP ? warp_sum(value) : block_sum(value);
}

/* keep_largest of sample.c. Each thread counts its own symbols in its own column of `has`. */
template <int LANES>
__device__ static KeptSymbols keep_largest(const Row &row, bool by_weight, uint64_t required)
{
    enum { DIGIT = 4, VALUES = 1 << DIGIT };
    __shared__ uint64_t has[VALUES][THREADS];
    LogitKey found = 0;
    uint64_t above = 0;
    for (int shift = KEY_BITS - DIGIT; shift >= 0; shift -= DIGIT) {
        for (int value = 0; value < VALUES; value++)
            has[value][threadIdx.x] = 0;
        LANE_FOR(c, row.C, LANES) {
            const Real logit = row.logits[c];
            const LogitKey key = logit_key(logit);
            if ((key ^ found) >> shift >> DIGIT == 0)
                has[key >> shift & (VALUES - 1)][threadIdx.x] +=
                    by_weight ? weight_of(row, logit) : 1;
        }
        int value = VALUES - 1;
        uint64_t here = count_of_row<LANES>(has[value][threadIdx.x]);
        while (above + here < required) {
            above += here;
            here = count_of_row<LANES>(has[--value][threadIdx.x]);
        }
        found |= (LogitKey)value << shift;
    }
    const uint64_t each = by_weight ? weight_of(row, logit_of_key(found)) : 1;
    KeptSymbols kept = { found, (required - above + each - 1) / each };
    return kept;
}

/* A stretch of the row: the weight of the symbols with keys above kept.key, and the number of
 * symbols with this key. */
struct Stretch {
    uint64_t weight, ties;

    __device__ uint64_t sum(KeptSymbols kept, uint64_t tie_weight) const
    {
        return weight + (ties < kept.ties ? ties : kept.ties) * tie_weight;
    }
};

/* The stretch of symbols first, first + step, ... below end. */
__device__ static inline Stretch add_stretch(const Row &row, KeptSymbols kept, int64_t first,
                                             int64_t end, int step)
{
    Stretch stretch = { 0, 0 };
    for (int64_t c = first; c < end; c += step) {
        const Real logit = row.logits[c];
        const LogitKey key = logit_key(logit);
        stretch.weight += key > kept.key ? weight_of(row, logit) : 0;
        stretch.ties += key == kept.key;
    }
    return stretch;
}

/* A warp scans its part of the row, 32 symbols at a time, up to the first symbol at which the
 * prefix sum exceeds the limit; `before` is the stretch before the part. */
__device__ static inline int64_t find_in_part(const Row &row, KeptSymbols kept, uint64_t limit,
                                              Stretch before, int64_t start)
{
    const int lane = threadIdx.x % WARP;
    const uint64_t tie_weight = weight_of(row, logit_of_key(kept.key));
    for (;; start += WARP) {
        Stretch to = add_stretch(row, kept, start + lane, row.C, row.C);
        for (int offset = 1; offset < WARP; offset *= 2) {
            const uint64_t weight = __shfl_up_sync(0xffffffffu, to.weight, offset);
            const uint64_t ties = __shfl_up_sync(0xffffffffu, to.ties, offset);
            to.weight += lane >= offset ? weight : 0;
            to.ties += lane >= offset ? ties : 0;
        }
        to.weight += before.weight;
        to.ties += before.ties;
        const unsigned exceeds = __ballot_sync(0xffffffffu, to.sum(kept, tie_weight) > limit);
        if (exceeds)
            return start + __ffs((int)exceeds) - 1;
        before.weight = __shfl_sync(0xffffffffu, to.weight, WARP - 1);
        before.ties = __shfl_sync(0xffffffffu, to.ties, WARP - 1);
    }
}

/* Returns the symbol to the warp that finds it, -1 to the others. */
template <int LANES>
__device__ static inline int64_t find_symbol(const Row &row, KeptSymbols kept, uint64_t uniform)
{
    enum { WARPS = LANES / WARP };
    const int warp = threadIdx.x % LANES / WARP;
    const uint64_t tie_weight = weight_of(row, logit_of_key(kept.key));
    const int64_t length = (row.C + LANES - 1) / LANES * WARP, start = warp * length;
    const int64_t end = start + length < row.C ? start + length : row.C;
    Stretch mine = add_stretch(row, kept, start + threadIdx.x % WARP, end, WARP);
    mine.weight = warp_sum(mine.weight);
    mine.ties = warp_sum(mine.ties);
    Stretch before = { 0, 0 }, all = mine;
    if (WARPS > 1) {
        __shared__ Stretch parts[WARPS]; /* reused safely: max_of_row synchronizes between rows */
        if (threadIdx.x % WARP == 0)
            parts[warp] = mine;
        __syncthreads();
        all = { 0, 0 };
        for (int i = 0; i < WARPS; i++) {
            before = i == warp ? all : before;
            all.weight += parts[i].weight;
            all.ties += parts[i].ties;
        }
    }
    const uint64_t total = all.sum(kept, tie_weight);
    if (total == 0)
        return warp == 0 ? 0 : -1;
    const uint64_t limit = product_high(uniform, total);
    const Stretch after = { before.weight + mine.weight, before.ties + mine.ties };
    if (before.sum(kept, tie_weight) > limit || after.sum(kept, tie_weight) <= limit)
        return -1;
    return find_in_part(row, kept, limit, before, start);
}

/* sample_symbol of sample.c; returns the symbol to the warp that finds it, -1 to the others. */
template <int LANES>
__device__ static inline int64_t choose_symbol(const Real *logits, int64_t C,
                                               const Sampler &sampler, uint64_t uniform)
{
    const Real largest = at_least_finite(max_of_row<LANES>(logits, C));
    const Row row = { logits, C, largest, sampler.temperature };
    KeptSymbols kept = { 0, 0 };
    if (sampler.greedy)
        kept = { logit_key(largest), 1 };
    else if (sampler.top_k > 0 && sampler.top_k < C)
        kept = keep_largest<LANES>(row, false, (uint64_t)sampler.top_k);
    if (sampler.top_p > 0) {
        Stretch all = add_stretch(row, kept, threadIdx.x % LANES, C, LANES);
        all = { count_of_row<LANES>(all.weight), count_of_row<LANES>(all.ties) };
        const uint64_t total = all.sum(kept, weight_of(row, logit_of_key(kept.key)));
        if (total > 0)
            kept = keep_largest<LANES>(row, true, product_high_up(sampler.top_p, total));
    }
    return find_symbol<LANES>(row, kept, uniform);
}

template <typename T, int LANES>
__global__ void sample_rows(int32_t *out, const T *logits, Sampler sampler, int64_t R, int64_t C)
{
    ROW_FOR(r, R, LANES) {
        const uint64_t uniform = sampler_uniform(&sampler, r);
        const int64_t symbol = choose_symbol<LANES>(logits + r * C, C, sampler, uniform);
        if (symbol >= 0 && threadIdx.x % WARP == 0)
            out[r] = (int32_t)symbol;
    }
}

/* One thread per Philox block, that is, four elements. */
__global__ void draw_normal(Real *out, Random random, const uint64_t *start, int64_t n)
{
    const uint64_t counter = random.counter + (start ? *start : 0);
    GRID_FOR(block, (n + 3) / 4) {
        double normal[4];
        philox_normal(philox(random.seed, random.stream, counter + (uint64_t)block), normal);
        for (int k = 0; k < 4 && 4 * block + k < n; k++)
            out[4 * block + k] = (Real)normal[k];
    }
}

static void sample_cuda(int32_t *out, const Real *logits, Sampler sampler, int64_t R, int64_t C)
{
    LAUNCH_ROWS(sample_rows, Real, R, C, out, logits, sampler, R, C);
}

static void draw_normal_cuda(Real *out, Random random, const uint64_t *start, int64_t n)
{
    LAUNCH(draw_normal, blocks_for((n + 3) / 4), THREADS, 0, out, random, start, n);
}

const SamplingKernels sampling_cuda = { sample_cuda, draw_normal_cuda };
