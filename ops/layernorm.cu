#include "ops/columns.h"
#include "ops/rows.cuh"

template <typename T, int LANES>
__global__ void layernorm_forward(T *out, Real *kept, const T *x, const Real *weight,
                                  const Real *bias, Real eps, int64_t R, int64_t C)
{
    ROW_FOR(row, R, LANES) {
        const T *xs = x + row * C;
        Real sum = 0, squares = 0;
        LANE_FOR(c, C, LANES)
            sum += load(&xs[c]);
        const Real mean = row_sum<LANES>(sum) / (Real)C;
        LANE_FOR(c, C, LANES) {
            const Real difference = load(&xs[c]) - mean;
            squares += difference * difference;
        }
        const Real r = 1 / sqrt(row_sum<LANES>(squares) / (Real)C + eps);
        LANE_FOR(c, C, LANES)
            store(&out[row * C + c], (load(&xs[c]) - mean) * r * weight[c] + bias[c]);
        if (threadIdx.x % LANES == 0) {
            kept[2 * row] = mean;
            kept[2 * row + 1] = r;
        }
    }
}

template <typename T, int LANES>
__global__ void layernorm_backward(T *dx, bool accumulate, const T *dout, const T *x,
                                   const Real *weight, const Real *kept, int64_t R, int64_t C)
{
    ROW_FOR(row, R, LANES) {
        const T *g = dout + row * C, *xs = x + row * C;
        const Real mean = kept[2 * row], r = kept[2 * row + 1];
        Real sum_h = 0, sum_hn = 0;
        LANE_FOR(c, C, LANES) {
            const Real h = load(&g[c]) * weight[c];
            sum_h += h;
            sum_hn += h * (load(&xs[c]) - mean) * r;
        }
        const Real mean_h = row_sum<LANES>(sum_h) / (Real)C;
        const Real mean_hn = row_sum<LANES>(sum_hn) / (Real)C;
        LANE_FOR(c, C, LANES) {
            const Real n = (load(&xs[c]) - mean) * r;
            contribute(&dx[row * C + c], accumulate,
                       r * (load(&g[c]) * weight[c] - mean_h - n * mean_hn));
        }
    }
}

/* dweight and dbias of the blockIdx.y-th block of rows and of WARP columns, one a lane: each warp
 * sums every so many-th row, and then the first adds the warps' sums. */
template <typename T>
__global__ void layernorm_weight_sums(Real *dweight, Real *dbias, const T *dout, const T *x,
                                      const Real *kept, int64_t R, int64_t C)
{
    enum { WARPS = THREADS / WARP };
    __shared__ Real parts[WARPS][2][WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t c = (int64_t)blockIdx.x * WARP + lane;
    const int64_t i = blockIdx.y, end = row_block_start(i + 1, R);
    Real sum_gn = 0, sum_g = 0;
    for (int64_t row = row_block_start(i, R) + warp; row < end && c < C; row += WARPS) {
        const Real g = load(&dout[row * C + c]);
        sum_gn += g * (load(&x[row * C + c]) - kept[2 * row]) * kept[2 * row + 1];
        sum_g += g;
    }
    parts[warp][0][lane] = sum_gn;
    parts[warp][1][lane] = sum_g;
    __syncthreads();
    if (warp == 0 && c < C) {
        for (int other = 1; other < WARPS; other++) {
            sum_gn += parts[other][0][lane];
            sum_g += parts[other][1][lane];
        }
        dweight[i * C + c] = sum_gn;
        dbias[i * C + c] = sum_g;
    }
}

extern "C" void layernorm_forward_cuda(Real *out, Real *kept, const Real *x, const Real *weight,
                                       const Real *bias, Real eps, int64_t R, int64_t C)
{
    BY_STORAGE(T, LAUNCH_ROWS(layernorm_forward, T, R, C, (T *)out, kept, (const T *)x, weight,
                              bias, eps, R, C));
}

extern "C" void layernorm_backward_cuda(Real *dx, bool accumulate, Real *dweight, Real *dbias,
                                        const Real *dout, const Real *x, const Real *weight,
                                        const Real *kept, int64_t R, int64_t C)
{
    const dim3 tiles((unsigned)((C + WARP - 1) / WARP), (unsigned)row_blocks(R));
    if (dweight)
        BY_STORAGE(T, LAUNCH(layernorm_weight_sums<T>, tiles, THREADS, 0, dweight, dbias,
                             (const T *)dout, (const T *)x, kept, R, C));
    if (dx)
        BY_STORAGE(T, LAUNCH_ROWS(layernorm_backward, T, R, C, (T *)dx, accumulate, (const T *)dout,
                                  (const T *)x, weight, kept, R, C));
}
