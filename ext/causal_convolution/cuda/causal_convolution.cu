/* causal_convolution on CUDA: one thread per element of out, dx and the states; dweight by the sums
 * over parts of the rows. causal_convolution.c has the derivation. */
#include "ext/causal_convolution/kernels.h"
#include "ops/cuda/shared/columns.cuh"

/* Element ch of x_i, or of what the state has in its place. */
template <typename T>
__device__ static inline Real input_at(const T *x, const Real *state, const ConvolvedSequences &c,
                                       Sequence q, int64_t i, int64_t ch)
{
    if (i >= q.first)
        return load(&x[i * c.C + ch]);
    return state ? state[state_offset(&c, q, i) + ch] : 0;
}

template <typename T>
__global__ void convolve_forward(T *out, const T *x, const Real *weight, const Real *bias,
                                 const Real *state, ConvolvedSequences c)
{
    GRID_FOR(n, c.R * c.C) {
        const int64_t i = n / c.C, ch = n % c.C;
        const Sequence q = sequence_of_row(&c, i);
        Real sum = bias && i < q.end ? bias[ch] : 0;
        for (int64_t k = 0; k < (i < q.end ? c.K : 0); k++)
            sum += weight[ch * c.K + k] * input_at(x, state, c, q, i + k - c.K + 1, ch);
        store(&out[n], sum);
    }
}

template <typename T>
__global__ void convolve_final_state(Real *final_state, const T *x, const Real *state,
                                     ConvolvedSequences c)
{
    GRID_FOR(n, c.S * (c.K - 1) * c.C) {
        const int64_t row = n / c.C, t = row % (c.K - 1);
        const Sequence q = sequence_at(&c, row / (c.K - 1));
        final_state[n] = input_at(x, state, c, q, q.end + t - c.K + 1, n % c.C);
    }
}

/* dL/dx_j, or dL by what the state has in its place, of channel ch */
template <typename T>
__device__ static inline Real gradient_at(const T *dout, const Real *dfinal, const Real *weight,
                                          const ConvolvedSequences &c, Sequence q, int64_t j,
                                          int64_t ch)
{
    const int64_t t = j - q.end + c.K - 1;
    if (j >= q.end)
        return 0;
    Real sum = dfinal && t >= 0 ? dfinal[(q.s * (c.K - 1) + t) * c.C + ch] : 0;
    for (int64_t k = 0; k < c.K; k++) {
        const int64_t i = j + c.K - 1 - k;
        if (i >= q.first && i < q.end)
            sum += load(&dout[i * c.C + ch]) * weight[ch * c.K + k];
    }
    return sum;
}

template <typename T>
__global__ void convolve_backward_x(T *dx, bool accumulate, const T *dout, const Real *dfinal,
                                    const Real *weight, ConvolvedSequences c)
{
    GRID_FOR(n, c.R * c.C) {
        const int64_t j = n / c.C;
        contribute(&dx[n], accumulate,
                   gradient_at(dout, dfinal, weight, c, sequence_of_row(&c, j), j, n % c.C));
    }
}

template <typename T>
__global__ void convolve_backward_state(Real *dstate, bool accumulate, const T *dout,
                                        const Real *dfinal, const Real *weight,
                                        ConvolvedSequences c)
{
    GRID_FOR(n, c.S * (c.K - 1) * c.C) {
        const int64_t row = n / c.C, t = row % (c.K - 1);
        const Sequence q = sequence_at(&c, row / (c.K - 1));
        contribute(&dstate[n], accumulate,
                   gradient_at(dout, dfinal, weight, c, q, q.first + t - c.K + 1, n % c.C));
    }
}

/* partial [K + 1, gridDim.y, C]: sums over each part of the rows, of dweight's columns and of
 * dbias; thread blocks with blockIdx.z = k compute one of them */
template <typename T>
__global__ void convolve_weight_parts(Real *partial, const T *dout, const T *x, const Real *state,
                                      ConvolvedSequences c, int lanes)
{
    const int64_t ch = (int64_t)blockIdx.x * lanes + threadIdx.x % lanes, k = blockIdx.z;
    const int64_t part = blockIdx.y, parts = gridDim.y;
    double sum = 0;
    for (int64_t i = c.R * part / parts + threadIdx.x / lanes; i < c.R * (part + 1) / parts;
         i += THREADS / lanes) {
        const Sequence q = sequence_of_row(&c, i);
        if (ch < c.C && i < q.end)
            sum += (double)(load(&dout[i * c.C + ch]) *
                            (k < c.K ? input_at(x, state, c, q, i + k - c.K + 1, ch) : 1));
    }
    sum = lane_sum(sum, lanes);
    if ((int)threadIdx.x < lanes && ch < c.C)
        partial[(k * parts + part) * c.C + ch] = (Real)sum;
}

__global__ void convolve_weight_sums(Gradient dweight, Gradient dbias, const Real *partial,
                                     int64_t parts, ConvolvedSequences c)
{
    GRID_FOR(n, (c.K + 1) * c.C) {
        const int64_t k = n / c.C, ch = n % c.C;
        double sum = 0;
        for (int64_t part = 0; part < parts; part++)
            sum += (double)partial[(k * parts + part) * c.C + ch];
        if (k < c.K && dweight.data)
            contribute(&dweight.data[ch * c.K + k], dweight.accumulate, (Real)sum);
        if (k == c.K && dbias.data)
            contribute(&dbias.data[ch], dbias.accumulate, (Real)sum);
    }
}

static void convolve_forward_cuda(TensorType type, Real *out, Real *final_state, const Real *x,
                                  const Real *weight, const Real *bias, const Real *state,
                                  ConvolvedSequences c)
{
    BY_STORAGE(type, T,
               LAUNCH(convolve_forward<T>, blocks_for(c.R * c.C), THREADS, 0, (T *)out,
                      (const T *)x, weight, bias, state, c));
    if (final_state)
        BY_STORAGE(type, T,
                   LAUNCH(convolve_final_state<T>, blocks_for(c.S * (c.K - 1) * c.C), THREADS, 0,
                          final_state, (const T *)x, state, c));
}

static void convolve_backward_x_cuda(TensorType type, Gradient dx, Gradient dstate,
                                     const Real *dout, const Real *dfinal_state, const Real *weight,
                                     ConvolvedSequences c)
{
    if (dx.data)
        BY_STORAGE(type, T,
                   LAUNCH(convolve_backward_x<T>, blocks_for(c.R * c.C), THREADS, 0, (T *)dx.data,
                          dx.accumulate, (const T *)dout, dfinal_state, weight, c));
    if (dstate.data)
        BY_STORAGE(type, T,
                   LAUNCH(convolve_backward_state<T>, blocks_for(c.S * (c.K - 1) * c.C), THREADS, 0,
                          dstate.data, dstate.accumulate, (const T *)dout, dfinal_state, weight,
                          c));
}

static void convolve_backward_weight_cuda(TensorType type, Gradient dweight, Gradient dbias,
                                          const Real *dout, const Real *x, const Real *state,
                                          ConvolvedSequences c)
{
    const int64_t parts = row_blocks(c.R);
    const int lanes = column_lanes(c.C);
    const dim3 blocks((unsigned)((c.C + lanes - 1) / lanes), (unsigned)parts, (unsigned)(c.K + 1));
    Real *partial = device_workspace((c.K + 1) * parts * c.C);
    BY_STORAGE(type, T,
               LAUNCH(convolve_weight_parts<T>, blocks, THREADS, 0, partial, (const T *)dout,
                      (const T *)x, state, c, lanes));
    LAUNCH(convolve_weight_sums, blocks_for((c.K + 1) * c.C), THREADS, 0, dweight, dbias, partial,
           parts, c);
    device_workspace_free(partial);
}

template <TensorType type>
static constexpr CausalConvolutionKernels causal_convolution_table = {
    call<convolve_forward_cuda, type>, call<convolve_backward_x_cuda, type>,
    call<convolve_backward_weight_cuda, type>
};
const CausalConvolutionKernels causal_convolution_cuda = causal_convolution_table<TENSOR_REAL>;
const CausalConvolutionKernels causal_convolution_cuda_bf16 = causal_convolution_table<TENSOR_BF16>;
