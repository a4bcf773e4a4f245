#include "ext/rms_norm/kernels.h"
#include "ops/cuda/shared/columns.cuh"
#include "ops/cuda/shared/rows.cuh"

template <typename T, int LANES>
__global__ void rms_norm_forward(T *out, const T *x, RmsNormArguments norm)
{
    const int64_t C = norm.C;
    ROW_FOR(row, norm.R, LANES) {
        Real squares = 0;
        LANE_FOR(c, C, LANES)
            squares += load(&x[row * C + c]) * load(&x[row * C + c]);
        const Real r = inverse_deviation(row_sum<LANES>(squares) * norm.s, norm.eps);
        LANE_FOR(c, C, LANES)
            store(&out[row * C + c], load(&x[row * C + c]) * r * weight_or_one(norm.weight, c));
        if (threadIdx.x % LANES == 0)
            norm.r[row] = r;
    }
}

template <typename T, int LANES>
__global__ void rms_norm_input_gradient(T *dx, bool accumulate, const T *dout, const T *x,
                                        RmsNormArguments norm)
{
    const int64_t C = norm.C;
    ROW_FOR(row, norm.R, LANES) {
        const Real r = norm.r[row];
        Real sum_hn = 0;
        LANE_FOR(c, C, LANES)
            sum_hn += load(&dout[row * C + c]) * weight_or_one(norm.weight, c) *
                      load(&x[row * C + c]) * r;
        const Real s_hn = norm.s * row_sum<LANES>(sum_hn);
        LANE_FOR(c, C, LANES) {
            const Real h = load(&dout[row * C + c]) * weight_or_one(norm.weight, c);
            contribute(&dx[row * C + c], accumulate, r * (h - load(&x[row * C + c]) * r * s_hn));
        }
    }
}

/* partial [gridDim.y, C] = the sums of g n over each part of the rows */
template <typename T>
__global__ void rms_norm_weight_gradient(Real *partial, const T *dout, const T *x, const Real *r,
                                         int64_t R, int64_t C, int lanes)
{
    const int64_t c = (int64_t)blockIdx.x * lanes + threadIdx.x % lanes;
    const int64_t part = blockIdx.y, parts = gridDim.y;
    double sum = 0;
    for (int64_t row = R * part / parts + threadIdx.x / lanes; row < R * (part + 1) / parts;
         row += THREADS / lanes)
        if (c < C)
            sum += (double)(load(&dout[row * C + c]) * load(&x[row * C + c]) * r[row]);
    sum = lane_sum(sum, lanes);
    if ((int)threadIdx.x < lanes && c < C)
        partial[part * C + c] = (Real)sum;
}

static void rms_norm_forward_cuda(TensorType type, Real *out, RmsNormArguments norm)
{
    BY_STORAGE(type, T,
               LAUNCH_ROWS(rms_norm_forward, T, norm.R, norm.C, (T *)out, (const T *)norm.x, norm));
}

static void rms_norm_backward_cuda(TensorType type, Gradient dx, Gradient dweight, const Real *dout,
                                   RmsNormArguments norm)
{
    const int64_t R = norm.R, C = norm.C, parts = row_blocks(R);
    if (dx.data)
        BY_STORAGE(type, T,
                   LAUNCH_ROWS(rms_norm_input_gradient, T, R, C, (T *)dx.data, dx.accumulate,
                               (const T *)dout, (const T *)norm.x, norm));
    if (!dweight.data)
        return;
    const int lanes = column_lanes(C);
    const dim3 blocks((unsigned)((C + lanes - 1) / lanes), (unsigned)parts);
    Real *partial = device_workspace(parts * C);
    BY_STORAGE(type, T,
               LAUNCH((rms_norm_weight_gradient<T>), blocks, THREADS, 0, partial, (const T *)dout,
                      (const T *)norm.x, norm.r, R, C, lanes));
    add_part_pairs(dweight, { NULL, false }, partial, parts, C);
    device_workspace_free(partial);
}

template <TensorType type>
static constexpr RmsNormKernels rms_norm_table = { call<rms_norm_forward_cuda, type>,
                                                   call<rms_norm_backward_cuda, type> };
const RmsNormKernels rms_norm_cuda = rms_norm_table<TENSOR_REAL>;
const RmsNormKernels rms_norm_cuda_bf16 = rms_norm_table<TENSOR_BF16>;
