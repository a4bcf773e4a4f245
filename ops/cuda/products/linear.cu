#include "ops/cuda/products/linear.h"
#include "ops/kernels.h"
#include "ops/shared/columns.h"
#include "ops/cuda/shared/map.cuh"

enum { WARPS = THREADS / WARP };

/* The first of a thread's LANES adjacent columns. A warp processes one row at a time. */
template <int LANES> __device__ static inline int64_t first_column()
{
    return ((int64_t)blockIdx.x * WARP + threadIdx.x % WARP) * LANES;
}

/* y, or out if y is NULL, holds the product. */
template <typename T, int LANES>
__global__ void activate(T *out, T *y, const Real *bias, Activation activation, int64_t R,
                         int64_t O)
{
    const int64_t o = first_column<LANES>();
    if (o >= O)
        return;
    const Reals<LANES> b = load_pack<LANES>(&bias[o]);
    for (int64_t r = (int64_t)blockIdx.y * WARPS + threadIdx.x / WARP; r < R;
         r += (int64_t)gridDim.y * WARPS) {
        Reals<LANES> value = load_pack<LANES>(&(y ? y : out)[r * O + o]);
#pragma unroll
        for (int k = 0; k < LANES; k++)
            value.value[k] += b.value[k];
        if (y)
            contribute_pack<LANES>(&y[r * O + o], false, value);
#pragma unroll
        for (int k = 0; k < LANES; k++)
            value.value[k] = activation_of(activation, value.value[k]);
        contribute_pack<LANES>(&out[r * O + o], false, value);
    }
}

/* h, and partial [row_blocks(R), O]: the column sums of h over block blockIdx.y of the rows, first
 * per warp, then over the warps. */
template <typename T, int LANES>
__global__ void activate_backward(T *h, Real *partial, const T *g, const T *y,
                                  Activation activation, int64_t R, int64_t O)
{
    __shared__ Real sums[WARPS][WARP * LANES];
    const int64_t o = first_column<LANES>(), i = blockIdx.y, end = row_block_start(i + 1, R);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    Reals<LANES> sum = {};
    for (int64_t r = row_block_start(i, R) + warp; r < end && o < O; r += WARPS) {
        Reals<LANES> value = load_pack<LANES>(&g[r * O + o]);
        const Reals<LANES> ys = load_pack<LANES>(&y[r * O + o]);
#pragma unroll
        for (int k = 0; k < LANES; k++) {
            value.value[k] = activation_gradient(activation, value.value[k], ys.value[k]);
            sum.value[k] += value.value[k];
        }
        contribute_pack<LANES>(&h[r * O + o], false, value);
    }
    for (int k = 0; k < LANES; k++)
        sums[warp][lane * LANES + k] = sum.value[k];
    __syncthreads();
    for (int c = threadIdx.x; c < WARP * LANES; c += THREADS) {
        const int64_t column = (int64_t)blockIdx.x * WARP * LANES + c;
        Real total = 0;
        for (int w = 0; w < WARPS; w++)
            total += sums[w][c];
        if (column < O)
            partial[i * O + column] = total;
    }
}

template <int LANES> static dim3 tiles(int64_t O, unsigned rows)
{
    const int64_t columns = WARP * LANES;
    return dim3((unsigned)((O + columns - 1) / columns), rows);
}

template <typename T>
static void launch_activate(T *out, T *y, const Real *bias, Activation activation, int64_t R,
                            int64_t O)
{
    constexpr int LANES = lanes_of<T>;
    const unsigned rows = blocks_for(R, WARPS);
    if (O % LANES == 0 && packs_fit<LANES>(out) && packs_fit<LANES>(y) && packs_fit<LANES>(bias))
        LAUNCH((activate<T, LANES>), tiles<LANES>(O, rows), THREADS, 0, out, y, bias, activation, R,
               O);
    else
        LAUNCH((activate<T, 1>), tiles<1>(O, rows), THREADS, 0, out, y, bias, activation, R, O);
}

template <typename T>
static void launch_activate_backward(T *h, Real *partial, const T *g, const T *y,
                                     Activation activation, int64_t R, int64_t O)
{
    constexpr int LANES = lanes_of<T>;
    const unsigned blocks = (unsigned)row_blocks(R);
    if (O % LANES == 0 && packs_fit<LANES>(h) && packs_fit<LANES>(g) && packs_fit<LANES>(y))
        LAUNCH((activate_backward<T, LANES>), tiles<LANES>(O, blocks), THREADS, 0, h, partial, g, y,
               activation, R, O);
    else
        LAUNCH((activate_backward<T, 1>), tiles<1>(O, blocks), THREADS, 0, h, partial, g, y,
               activation, R, O);
}

extern "C" void linear_activate_cuda(TensorType type, Real *out, Real *y, const Real *bias,
                                     Activation activation, int64_t R, int64_t O)
{
    BY_STORAGE(type, T, launch_activate((T *)out, (T *)y, bias, activation, R, O));
}

/* partial [row_blocks(R), O]: the column sums of h by blocks of rows. */
extern "C" void launch_linear_activate_backward(TensorType type, Real *h, Real *partial,
                                                const Real *g, const Real *y, Activation activation,
                                                int64_t R, int64_t O)
{
    BY_STORAGE(
        type, T,
        launch_activate_backward((T *)h, partial, (const T *)g, (const T *)y, activation, R, O));
}
