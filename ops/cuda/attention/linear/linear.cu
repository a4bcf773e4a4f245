/* Launches linear attention: with a causal mask on tensor cores where they suffice (mma.cuh), else
 * and without a mask in tiles of Real (scan_passes.cuh). */
#include "ops/kernels.h"
#include "ops/cuda/attention/linear/scan_passes.cuh"

#ifdef TAPEGRAD_DOUBLE
/* The tensor-core kernels have no double-precision build. */
#define BY_KERNELS(type, s, mma, tiles) BY_STORAGE(type, T, tiles)
#else
#include "ops/cuda/attention/linear/mma_kernels.cuh"

/* Runs the statement with T as the dtype and SIZE as the padded size of its heads. */
#define BY_TYPE_AND_SIZE(type, s, ...)                                                             \
    do {                                                                                           \
        const int64_t most_ = (s)->x.D > (s)->x.M ? (s)->x.D : (s)->x.M;                           \
        if (most_ <= 32) {                                                                         \
            enum { SIZE = 32 };                                                                    \
            BY_STORAGE(type, T, __VA_ARGS__);                                                      \
        } else if (most_ <= 64) {                                                                  \
            enum { SIZE = 64 };                                                                    \
            BY_STORAGE(type, T, __VA_ARGS__);                                                      \
        } else {                                                                                   \
            enum { SIZE = 128 };                                                                   \
            BY_STORAGE(type, T, __VA_ARGS__);                                                      \
        }                                                                                          \
    } while (0)

/* ------------------------------------------------------------------------------------- the plan */

/* Blocks of a kernel that the device runs at once; asked once per device. */
template <auto KERNEL, int BLOCK_THREADS, int BYTES> static int64_t resident_blocks()
{
    static std::atomic<int64_t> known[CUDA_MAX_DEVICES];
    std::atomic<int64_t> &blocks = known[cuda_index()];
    if (blocks == 0) {
        int per_multiprocessor;
        allow_shared_memory<KERNEL, BYTES>();
        cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, KERNEL,
                                                                 BLOCK_THREADS, (size_t)BYTES),
                   "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
        blocks = max(1, per_multiprocessor) * device_attribute(cudaDevAttrMultiProcessorCount);
    }
    return blocks;
}

template <typename T, int SIZE> struct MmaKernels {
    enum {
        THREADS_PER_BLOCK = Mma<T, SIZE>::BLOCK_THREADS,
        SUM_BYTES = MmaMemory<T, SIZE, 2, false>::BYTES,
        FORWARD_BYTES = MmaMemory<T, SIZE, 3, true>::BYTES,
        BACKWARD_BYTES = MmaMemory<T, SIZE, ARGUMENTS, true>::BYTES,
    };
    static_assert((int)BACKWARD_BYTES <= 227 << 10,
                  "more shared memory than an H100's block can have");
};

/* FORM_CHUNKED does not cut heads; FORM_CHUNK_PARALLEL cuts each head of two or more chunks. */
template <typename T, int SIZE> static ChunkPlan plan_of(const LinearScan *s, bool backward)
{
    typedef MmaKernels<T, SIZE> K;
    enum { BLOCK = K::THREADS_PER_BLOCK, BYTES = K::BACKWARD_BYTES };
    const Line line = line_of(&s->x);
    const int64_t chunks = line.pieces, heads = pieces_in_all(line) / chunks;
    if (s->form == FORM_CHUNKED)
        return chunk_plan_of(heads, chunks, chunks);
    const int64_t resident =
        backward ? min(resident_blocks<mma_query_gradient<T, SIZE>, BLOCK, BYTES>(),
                       resident_blocks<mma_key_value_gradients<T, SIZE>, BLOCK, BYTES>())
                 : resident_blocks<mma_forward<T, SIZE>, BLOCK, K::FORWARD_BYTES>();
    const ChunkPlan plan = plan_chunks(heads, chunks, resident);
    const int64_t half = tiles_for(chunks, 2);
    return s->form == FORM_CHUNK_PARALLEL && plan.per_block > half
               ? chunk_plan_of(heads, chunks, half)
               : plan;
}

/* Elements of an array of sums: none if no head is cut. */
template <typename T, int SIZE> static int64_t sums_size(const LinearScan *s, const ChunkPlan &plan)
{
    return plan.cuts_heads ? (plan.blocks + s->x.B * s->x.H) * Mma<T, SIZE>::SLOT : 0;
}

/* dden comes before the sums, which begin at multiples of 16 bytes. */
static int64_t dden_size(const LinearScan *s)
{
    return tiles_for(rows_in_all(&s->x), 4) * 4;
}

/* Whether the call takes the tensor-core kernels. The others have float32 products, as the forms
 * that are not chunked promise. They suffice for a few positions, for which FORM_BEST is exact. */
static bool uses_mma(TensorType type, const LinearScan *s)
{
    const int64_t few = 4;
    const bool exact = s->form == FORM_RECURRENT || s->form == FORM_QUADRATIC ||
                       (s->form == FORM_BEST && s->x.N <= few);
    bool fits = false;
    if (s->log_decay || s->unnormalized)
        return false;
    if (!exact && s->x.D <= 128 && s->x.M <= 128)
        BY_TYPE_AND_SIZE(type, s,
                         fits = (int)MmaKernels<T, SIZE>::BACKWARD_BYTES <=
                                device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
    return fits;
}

/* -------------------------------------------------------------------------------- the arguments */

template <typename T>
static Argument<T> argument_of(const Real *data, int64_t stride, int64_t columns, FeatureMap map)
{
    const size_t piece = 16 / sizeof(T);
    Argument<T> x = {};
    x.data = (const T *)data;
    x.stride = stride;
    x.columns = (int)columns;
    x.map = map;
    x.aligned = (uintptr_t)data % 16 == 0 && (size_t)stride % piece == 0 && columns % 8 == 0;
    return x;
}

template <typename T>
static ScanResult<T> result_of(const Gradient &d, int64_t stride, int64_t columns)
{
    ScanResult<T> r = {};
    r.data = (T *)d.data;
    r.stride = stride;
    r.columns = (int)columns;
    r.accumulate = d.accumulate;
    r.paired = (uintptr_t)d.data % (2 * sizeof(T)) == 0 && stride % 2 == 0 && columns % 2 == 0;
    return r;
}

template <typename T>
static CausalMma<T> arguments_of(const LinearScan *s, const ChunkPlan &plan, Real *den)
{
    const int64_t few = 8; /* segments of a head, whose sums a block adds itself */
    const AttentionInputs *x = &s->x;
    CausalMma<T> c = {};
    c.argument[KEY] = argument_of<T>(x->key, x->key_stride, x->D, s->features);
    c.argument[VALUE] = argument_of<T>(x->value, x->value_stride, x->M, FEATURE_MAP_IDENTITY);
    c.argument[QUERY] = argument_of<T>(x->query, x->query_stride, x->D, s->features);
    c.argument[KEY].masked = c.argument[VALUE].masked = x->key_lengths;
    c.line = line_of(x);
    c.N = x->N;
    c.H = (int)x->H;
    c.chunks = (int32_t)pieces_in_all(c.line);
    c.key_lengths = x->key_lengths;
    c.per_block = (int32_t)plan.per_block;
    c.cuts_heads = plan.cuts_heads;
    c.scanned = tiles_for(c.line.pieces, c.per_block) > few;
    c.den = den;
    c.eps = s->eps;
    c.initial_state = s->state;
    return c;
}

/* ----------------------------------------------------------------------------------- the passes */

/* launch: LAUNCH or LAUNCH_DEPENDENT */
#define LAUNCH_MMA(launch, kernel, blocks, K, bytes, ...)                                          \
    do {                                                                                           \
        allow_shared_memory<kernel, bytes>();                                                      \
        launch(kernel, (unsigned)(blocks), (int)K::THREADS_PER_BLOCK, bytes, __VA_ARGS__);         \
    } while (0)

template <typename T, int SIZE> static void prefix_sum(const CausalMma<T> &c, Sum sum)
{
    const int64_t slot = Mma<T, SIZE>::SLOT, heads = c.line.B * c.line.H;
    if (c.scanned)
        LAUNCH_DEPENDENT(prefix_sum_segments<T>, blocks_for(heads * slot), THREADS, 0, c, sum, slot,
                         heads * slot);
}

/* The segments' sums for S and z. This launch begins a sequence of dependent kernels. */
template <typename T, int SIZE> static void sum_segments(const CausalMma<T> &c, int64_t blocks)
{
    typedef MmaKernels<T, SIZE> K;
    LAUNCH_MMA(LAUNCH, (mma_sum_segments<T, SIZE>), blocks, K, (int)K::SUM_BYTES, c);
    prefix_sum<T, SIZE>(c, PREFIX);
}

template <typename T, int SIZE>
static void mma_forward_pass(Real *out, Real *den, Real *final_state, const LinearScan *s)
{
    typedef MmaKernels<T, SIZE> K;
    const ChunkPlan plan = plan_of<T, SIZE>(s, false);
    Real *const scratch = plan.cuts_heads ? device_workspace(sums_size<T, SIZE>(s, plan)) : NULL;
    CausalMma<T> c = arguments_of<T>(s, plan, den);
    c.result[0] = result_of<T>({ out, false }, s->x.H * s->x.M, s->x.M);
    c.final_state = final_state;
    c.sums[PREFIX] = scratch;
    if (plan.cuts_heads) {
        sum_segments<T, SIZE>(c, plan.blocks);
        LAUNCH_MMA(LAUNCH_DEPENDENT, (mma_forward<T, SIZE>), plan.blocks, K, (int)K::FORWARD_BYTES,
                   c);
    } else {
        LAUNCH_MMA(LAUNCH, (mma_forward<T, SIZE>), plan.blocks, K, (int)K::FORWARD_BYTES, c);
    }
    device_workspace_free(scratch);
}

template <typename T, int SIZE>
static void mma_backward_pass(const LinearScanGradient &d, const Real *dout,
                              const Real *dfinal_state, const Real *out, const Real *den,
                              const LinearScan *s)
{
    typedef MmaKernels<T, SIZE> K;
    const AttentionInputs *x = &s->x;
    const ChunkPlan plan = plan_of<T, SIZE>(s, true);
    const int64_t sums = sums_size<T, SIZE>(s, plan);
    Real *const scratch = device_workspace(dden_size(s) + 2 * sums);
    CausalMma<T> c = arguments_of<T>(s, plan, (Real *)den);
    c.argument[DOUT] = argument_of<T>(dout, x->H * x->M, x->M, FEATURE_MAP_IDENTITY);
    c.argument[DOUT].divided = true;
    c.result[QUERY] = result_of<T>(d.x.query, x->query_stride, x->D);
    c.result[KEY] = result_of<T>(d.x.key, x->key_stride, x->D);
    c.result[VALUE] = result_of<T>(d.x.value, x->value_stride, x->M);
    c.dden = scratch;
    c.sums[PREFIX] = scratch + dden_size(s);
    c.sums[SUFFIX] = c.sums[PREFIX] + sums;
    c.dfinal_state = dfinal_state;
    c.dinitial_state = d.state;
    launch_row_deltas<T, Mma<T, SIZE>::PARTS>(scratch, dout, out, den, rows_in_all(x), x->M);
    if (plan.cuts_heads)
        sum_segments<T, SIZE>(c, plan.blocks);
    if (plan.cuts_heads || d.x.query.data)
        LAUNCH_MMA(LAUNCH_DEPENDENT, (mma_query_gradient<T, SIZE>), plan.blocks, K,
                   (int)K::BACKWARD_BYTES, c);
    if (plan.cuts_heads)
        prefix_sum<T, SIZE>(c, SUFFIX);
    if (d.x.key.data || d.x.value.data || d.state)
        LAUNCH_MMA(LAUNCH_DEPENDENT, (mma_key_value_gradients<T, SIZE>), plan.blocks, K,
                   (int)K::BACKWARD_BYTES, c);
    device_workspace_free(scratch);
}

/* Runs the first statement, with T and SIZE, on tensor cores, or the second, with T. */
#define BY_KERNELS(type, s, mma, tiles)                                                            \
    do {                                                                                           \
        if (uses_mma(type, s))                                                                     \
            BY_TYPE_AND_SIZE(type, s, mma);                                                        \
        else                                                                                       \
            BY_STORAGE(type, T, tiles);                                                            \
    } while (0)
#endif

extern "C" void causal_linear_attention_forward_cuda(TensorType type, Real *out, Real *den,
                                                     Real *final_state, const LinearScan *s)
{
    BY_KERNELS(type, s, (mma_forward_pass<T, SIZE>(out, den, final_state, s)),
               (scan_forward<T, WIDEST, true>(out, den, final_state, s)));
}

extern "C" void causal_linear_attention_backward_cuda(TensorType type, LinearScanGradient d,
                                                      const Real *dout, const Real *dfinal_state,
                                                      const Real *out, const Real *den,
                                                      const LinearScan *s)
{
    BY_KERNELS(type, s, (mma_backward_pass<T, SIZE>(d, dout, dfinal_state, out, den, s)),
               (scan_backward<T, WIDEST, true>(d, dout, dfinal_state, out, den, s)));
}

/* The state alone, by the same kernels: out and den are scratch memory, dout is 0. */
typedef struct StateScratch {
    Real *out, *den;
} StateScratch;

static StateScratch state_scratch(TensorType type, Real *state, const LinearScan *s)
{
    const int64_t rows = s->x.B * s->x.N * s->x.H;
    const StateScratch scratch = { device_workspace(rows * s->x.M),
                                   s->unnormalized ? NULL : device_workspace(rows) };
    causal_linear_attention_forward_cuda(type, scratch.out, scratch.den, state, s);
    return scratch;
}

static void free_scratch(StateScratch scratch)
{
    if (scratch.den)
        device_workspace_free(scratch.den);
    device_workspace_free(scratch.out);
}

__global__ void zero_elements(Real *x, int64_t n)
{
    GRID_FOR(i, n)
        x[i] = 0;
}

extern "C" void causal_linear_state_forward_cuda(TensorType type, Real *state, const LinearScan *s)
{
    free_scratch(state_scratch(type, state, s));
}

extern "C" void causal_linear_state_backward_cuda(TensorType type, LinearScanGradient d,
                                                  const Real *dstate, const LinearScan *s)
{
    const int64_t n = s->x.B * s->x.N * s->x.H * s->x.M;
    const StateScratch scratch = state_scratch(type, NULL, s);
    Real *dout = device_workspace(n);
    LAUNCH(zero_elements, blocks_for(n), THREADS, 0, dout, n);
    causal_linear_attention_backward_cuda(type, d, dout, dstate, scratch.out, scratch.den, s);
    device_workspace_free(dout);
    free_scratch(scratch);
}

/* Without a causal mask: scan_passes.cuh */

extern "C" void linear_attention_forward_cuda(TensorType type, Real *out, Real *den,
                                              const LinearScan *s)
{
    BY_TYPE_AND_TILE_SIZE(type, s->x.D, s->x.M, (scan_forward<T, SIZE, false>(out, den, NULL, s)));
}

extern "C" void linear_attention_backward_cuda(TensorType type, AttentionGradient d,
                                               const Real *dout, const Real *out, const Real *den,
                                               const LinearScan *s)
{
    const LinearScanGradient all = { d, NULL, { NULL, false } };
    BY_TYPE_AND_TILE_SIZE(type, s->x.D, s->x.M,
                          (scan_backward<T, SIZE, false>(all, dout, NULL, out, den, s)));
}
