/* causal_convolution on the CPU, in both dtypes: the weights are transposed to [K, C], so that all
 * loops are along the channels, and a tile of channels stays in L1 while its taps are summed. The
 * blocks of rows of dweight depend on R alone. */
#include "ext/causal_convolution/kernels.h"
#include "ops/cpu/shared/columns.h"
#include "ops/cpu/shared/storage.h"

enum { TAP_TILE = 128 };

static const Real *transposed_taps(const Real *weight, ConvolvedSequences c)
{
    Real *taps = device_workspace(c.K * c.C);
    for (int64_t ch = 0; ch < c.C; ch++)
        for (int64_t k = 0; k < c.K; k++)
            taps[k * c.C + ch] = weight[ch * c.K + k];
    return taps;
}

/* sum [n] += taps [n] x [n] */
ALWAYS_INLINE void add_tap(int T, Real *sum, const Real *taps, const Real *x, int64_t n)
{
#pragma omp simd
    for (int64_t ch = 0; ch < n; ch++)
        sum[ch] += taps[ch] * load(T, x, ch);
}

/* out_i, of channels from ch on */
ALWAYS_INLINE void convolve_tile(int T, Real *out, const Real *x, const Real *taps,
                                 const Real *bias, const Real *state, const ConvolvedSequences *c,
                                 Sequence q, int64_t i, int64_t ch)
{
    const int64_t n = c->C - ch < TAP_TILE ? c->C - ch : TAP_TILE;
    Real sum[TAP_TILE];
    for (int64_t j = 0; j < n; j++)
        sum[j] = bias && i < q.end ? bias[ch + j] : 0;
    for (int64_t k = 0; k < (i < q.end ? c->K : 0); k++) {
        const int64_t in = i + k - c->K + 1;
        if (in >= q.first)
            add_tap(T, sum, taps + k * c->C + ch, elements_at(T, x, in * c->C + ch), n);
        else if (state)
            add_tap(TENSOR_REAL, sum, taps + k * c->C + ch, state + state_offset(c, q, in) + ch, n);
    }
    for (int64_t j = 0; j < n; j++)
        store(T, out, i * c->C + ch + j, sum[j]);
}

static void write_final_state(TensorType type, Real *final_state, const Real *x, const Real *state,
                              ConvolvedSequences c)
{
    for (int64_t s = 0; s < c.S; s++) {
        const Sequence q = sequence_at(&c, s);
        for (int64_t t = 0; t < c.K - 1; t++) {
            const int64_t in = q.end + t - c.K + 1;
            Real *to = final_state + (s * (c.K - 1) + t) * c.C;
            if (in >= q.first)
                convert_elements(TENSOR_REAL, to, (int)type, elements_at((int)type, x, in * c.C),
                                 c.C);
            else if (state)
                memcpy(to, state + state_offset(&c, q, in), (size_t)c.C * sizeof *to);
            else
                memset(to, 0, (size_t)c.C * sizeof *to);
        }
    }
}

static void convolve(TensorType type, Real *out, Real *final_state, const Real *x,
                     const Real *weight, const Real *bias, const Real *state, ConvolvedSequences c)
{
    const Real *taps = transposed_taps(weight, c);
    EACH_ROW(i, c.R, c.C * 2)
        for (int64_t ch = 0; ch < c.C; ch += TAP_TILE)
            BY_STORAGE(
                type, T,
                convolve_tile(T, out, x, taps, bias, state, &c, sequence_of_row(&c, i), i, ch));
    if (final_state)
        write_final_state(type, final_state, x, state, c);
    device_workspace_free(taps);
}

/* dx [n] <- the gradient by x_j, or by what the state has in its place, of channels from ch on; S
 * is the dtype of dx */
ALWAYS_INLINE void gradient_tile(int T, int S, Gradient dx, const Real *dout, const Real *dfinal,
                                 const Real *taps, const ConvolvedSequences *c, Sequence q,
                                 int64_t j, int64_t ch)
{
    const int64_t n = c->C - ch < TAP_TILE ? c->C - ch : TAP_TILE, t = j - q.end + c->K - 1;
    Real sum[TAP_TILE];
    for (int64_t l = 0; l < n; l++)
        sum[l] = dfinal && t >= 0 && j < q.end ? dfinal[(q.s * (c->K - 1) + t) * c->C + ch + l] : 0;
    for (int64_t k = 0; k < c->K; k++) {
        const int64_t i = j + c->K - 1 - k;
        if (i >= q.first && i < q.end && j < q.end)
            add_tap(T, sum, taps + k * c->C + ch, elements_at(T, dout, i * c->C + ch), n);
    }
    for (int64_t l = 0; l < n; l++)
        contribute(S, dx.data, l, dx.accumulate, sum[l]);
}

static void convolve_backward(TensorType type, Gradient dx, Gradient dstate, const Real *dout,
                              const Real *dfinal, const Real *weight, ConvolvedSequences c)
{
    const Real *taps = transposed_taps(weight, c);
    EACH_ROW(j, dx.data ? c.R : 0, c.C * 2)
        for (int64_t ch = 0; ch < c.C; ch += TAP_TILE)
            BY_STORAGE(
                type, T,
                const Gradient at = { elements_at(T, dx.data, j * c.C + ch), dx.accumulate };
                gradient_tile(T, T, at, dout, dfinal, taps, &c, sequence_of_row(&c, j), j, ch));
    for (int64_t row = 0; row < (dstate.data ? c.S * (c.K - 1) : 0); row++)
        for (int64_t ch = 0; ch < c.C; ch += TAP_TILE) {
            const Sequence q = sequence_at(&c, row / (c.K - 1));
            const Gradient at = gradient_from(dstate, row * c.C + ch);
            const int64_t j = q.first + row % (c.K - 1) - c.K + 1;
            BY_STORAGE(type, T,
                       gradient_tile(T, TENSOR_REAL, at, dout, dfinal, taps, &c, q, j, ch));
        }
    device_workspace_free(taps);
}

/* sums [K + 1, C] += the rows' part of dweight's columns, and of dbias */
ALWAYS_INLINE void add_weight_row(int T, Real *sums, const Real *dout, const Real *x,
                                  const Real *state, const ConvolvedSequences *c, int64_t i)
{
    const Sequence q = sequence_of_row(c, i);
    const Real *g = elements_at(T, dout, i * c->C);
    for (int64_t k = 0; k < (i < q.end ? c->K : 0); k++) {
        const int64_t in = i + k - c->K + 1;
        const Real *row = elements_at(T, x, in * c->C);
        Real *sum = sums + k * c->C;
        if (in >= q.first)
#pragma omp simd
            for (int64_t ch = 0; ch < c->C; ch++)
                sum[ch] += load(T, g, ch) * load(T, row, ch);
        else if (state)
            for (int64_t ch = 0; ch < c->C; ch++)
                sum[ch] += load(T, g, ch) * state[state_offset(c, q, in) + ch];
    }
#pragma omp simd
    for (int64_t ch = 0; ch < (i < q.end ? c->C : 0); ch++)
        sums[c->K * c->C + ch] += load(T, g, ch);
}

static void convolve_backward_weight(TensorType type, Gradient dweight, Gradient dbias,
                                     const Real *dout, const Real *x, const Real *state,
                                     ConvolvedSequences c)
{
    const int64_t blocks = sum_blocks(c.R), size = (c.K + 1) * c.C;
    Real *partial = device_workspace((blocks + 1) * size), *sums = partial + blocks * size;
    memset(partial, 0, (size_t)((blocks + 1) * size) * sizeof *partial);
#pragma omp parallel for schedule(static) num_threads(device_threads_for(c.R *c.C *c.K, 0.3))
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t i = sum_block_start(b, c.R); i < sum_block_start(b + 1, c.R); i++)
            BY_STORAGE(type, T, add_weight_row(T, partial + b * size, dout, x, state, &c, i));
    add_blocks((Gradient){ sums, false }, partial, blocks, size);
    for (int64_t i = 0; i < (dweight.data ? c.C * c.K : 0); i++)
        gradient_add(dweight, i, sums[i % c.K * c.C + i / c.K]);
    for (int64_t ch = 0; ch < (dbias.data ? c.C : 0); ch++)
        gradient_add(dbias, ch, sums[c.K * c.C + ch]);
    device_workspace_free(partial);
}

static void convolve_forward_cpu(Real *out, Real *final_state, const Real *x, const Real *weight,
                                 const Real *bias, const Real *state, ConvolvedSequences c)
{
    convolve(TENSOR_REAL, out, final_state, x, weight, bias, state, c);
}

static void convolve_forward_bf16(Real *out, Real *final_state, const Real *x, const Real *weight,
                                  const Real *bias, const Real *state, ConvolvedSequences c)
{
    convolve(TENSOR_BF16, out, final_state, x, weight, bias, state, c);
}

static void convolve_backward_x_cpu(Gradient dx, Gradient dstate, const Real *dout,
                                    const Real *dfinal_state, const Real *weight,
                                    ConvolvedSequences c)
{
    convolve_backward(TENSOR_REAL, dx, dstate, dout, dfinal_state, weight, c);
}

static void convolve_backward_x_bf16(Gradient dx, Gradient dstate, const Real *dout,
                                     const Real *dfinal_state, const Real *weight,
                                     ConvolvedSequences c)
{
    convolve_backward(TENSOR_BF16, dx, dstate, dout, dfinal_state, weight, c);
}

static void convolve_backward_weight_cpu(Gradient dweight, Gradient dbias, const Real *dout,
                                         const Real *x, const Real *state, ConvolvedSequences c)
{
    convolve_backward_weight(TENSOR_REAL, dweight, dbias, dout, x, state, c);
}

static void convolve_backward_weight_bf16(Gradient dweight, Gradient dbias, const Real *dout,
                                          const Real *x, const Real *state, ConvolvedSequences c)
{
    convolve_backward_weight(TENSOR_BF16, dweight, dbias, dout, x, state, c);
}

const CausalConvolutionKernels causal_convolution_cpu = { convolve_forward_cpu,
                                                          convolve_backward_x_cpu,
                                                          convolve_backward_weight_cpu };
const CausalConvolutionKernels causal_convolution_cpu_bf16 = { convolve_forward_bf16,
                                                               convolve_backward_x_bf16,
                                                               convolve_backward_weight_bf16 };
