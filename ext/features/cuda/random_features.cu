#include "ops/kernels.h"
#include "ops/cuda/shared/rows.cuh"

template <typename T, int LANES>
__global__ void random_features_forward(T *out, const Real *y, const T *x, Real scale,
                                        FeatureSizes s)
{
    const int64_t F = s.F, D = s.D;
    ROW_FOR(r, s.R, LANES) {
        Real n = 0;
        LANE_FOR(d, D, LANES) {
            const Real value = load(&x[r * D + d]);
            n += value * value / 2;
        }
        n = row_sum<LANES>(n);
        LANE_FOR(f, F, LANES)
            store(&out[r * F + f], scale * exp(y[r * F + f] - n));
    }
}

template <typename T, int LANES>
__global__ void random_features_backward(T *h, T *dx, bool accumulate, const T *dout, const T *out,
                                         const T *x, FeatureSizes s)
{
    const int64_t F = s.F, D = s.D;
    ROW_FOR(r, s.R, LANES) {
        Real sum = 0;
        LANE_FOR(f, F, LANES) {
            const Real value = load(&dout[r * F + f]) * load(&out[r * F + f]);
            store(&h[r * F + f], value);
            sum += value;
        }
        sum = row_sum<LANES>(sum);
        LANE_FOR(d, dx ? D : 0, LANES)
            contribute(&dx[r * D + d], accumulate, -sum * load(&x[r * D + d]));
    }
}

extern "C" void random_features_forward_cuda(TensorType type, Real *out, const Real *y,
                                             const Real *x, FeatureSizes s)
{
    BY_STORAGE(type, T,
               LAUNCH_ROWS(random_features_forward, T, s.R, s.F, (T *)out, y, (const T *)x,
                           (Real)(1 / sqrt((double)s.F)), s));
}

extern "C" void random_features_backward_cuda(TensorType type, Real *h, Gradient dx,
                                              const Real *dout, const Real *out, const Real *x,
                                              FeatureSizes s)
{
    BY_STORAGE(type, T,
               LAUNCH_ROWS(random_features_backward, T, s.R, s.F, (T *)h, (T *)dx.data,
                           dx.accumulate, (const T *)dout, (const T *)out, (const T *)x, s));
}
