#include "ops/kernels.h"
#include "ops/cuda/shared/rows.cuh"

template <typename T, int LANES>
__global__ void softmax_forward(T *out, const T *x, int64_t R, int64_t C)
{
    ROW_FOR(row, R, LANES) {
        const T *xs = x + row * C;
        const Real m = max_of_row<LANES>(xs, C), scale = 1 / exp_sum_of_row<LANES>(xs, m, C);
        LANE_FOR(c, C, LANES)
            store(&out[row * C + c], exp(load(&xs[c]) - m) * scale);
    }
}

template <typename T, int LANES>
__global__ void log_softmax_forward(T *out, const T *x, int64_t R, int64_t C)
{
    ROW_FOR(row, R, LANES) {
        const LogSumExp l = log_sum_exp_of_row<LANES>(x + row * C, C);
        LANE_FOR(c, C, LANES)
            store(&out[row * C + c], log_probability(load(&x[row * C + c]), l));
    }
}

template <typename T, int LANES>
__global__ void softmax_backward(T *dx, bool accumulate, const T *dout, const T *out, int64_t R,
                                 int64_t C)
{
    ROW_FOR(row, R, LANES) {
        const T *g = dout + row * C, *outs = out + row * C;
        Real sum = 0;
        LANE_FOR(c, C, LANES)
            sum += load(&g[c]) * load(&outs[c]);
        sum = row_sum<LANES>(sum);
        LANE_FOR(c, C, LANES)
            contribute(&dx[row * C + c], accumulate, load(&outs[c]) * (load(&g[c]) - sum));
    }
}

template <typename T, int LANES>
__global__ void log_softmax_backward(T *dx, bool accumulate, const T *dout, const T *out, int64_t R,
                                     int64_t C)
{
    ROW_FOR(row, R, LANES) {
        const T *g = dout + row * C, *outs = out + row * C;
        Real sum = 0;
        LANE_FOR(c, C, LANES)
            sum += load(&g[c]);
        sum = row_sum<LANES>(sum);
        LANE_FOR(c, C, LANES)
            contribute(&dx[row * C + c], accumulate, load(&g[c]) - exp(load(&outs[c])) * sum);
    }
}

extern "C" void softmax_forward_cuda(TensorType type, Real *out, const Real *x, int64_t R,
                                     int64_t C)
{
    BY_STORAGE(type, T, LAUNCH_ROWS(softmax_forward, T, R, C, (T *)out, (const T *)x, R, C));
}

extern "C" void softmax_backward_cuda(TensorType type, Gradient dx, const Real *dout,
                                      const Real *out, int64_t R, int64_t C)
{
    BY_STORAGE(type, T,
               LAUNCH_ROWS(softmax_backward, T, R, C, (T *)dx.data, dx.accumulate, (const T *)dout,
                           (const T *)out, R, C));
}

extern "C" void log_softmax_forward_cuda(TensorType type, Real *out, const Real *x, int64_t R,
                                         int64_t C)
{
    BY_STORAGE(type, T, LAUNCH_ROWS(log_softmax_forward, T, R, C, (T *)out, (const T *)x, R, C));
}

extern "C" void log_softmax_backward_cuda(TensorType type, Gradient dx, const Real *dout,
                                          const Real *out, int64_t R, int64_t C)
{
    BY_STORAGE(type, T,
               LAUNCH_ROWS(log_softmax_backward, T, R, C, (T *)dx.data, dx.accumulate,
                           (const T *)dout, (const T *)out, R, C));
}
