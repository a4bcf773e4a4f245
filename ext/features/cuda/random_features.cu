#include "ext/features/kernels.h"
#include "ops/cuda/shared/rows.cuh"

template <typename T, int LANES>
__global__ void random_forward(T *out, const Real *y, const T *x, Real scale, FeatureSizes s)
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
__global__ void random_backward(T *h, T *dx, bool accumulate, const T *dout, const T *out,
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

static void random_forward_cuda(TensorType type, Real *out, const Real *y, const Real *x,
                                FeatureSizes s)
{
    BY_STORAGE(type, T,
               LAUNCH_ROWS(random_forward, T, s.R, s.F, (T *)out, y, (const T *)x,
                           (Real)(1 / sqrt((double)s.F)), s));
}

static void random_backward_cuda(TensorType type, Real *h, Gradient dx, const Real *dout,
                                 const Real *out, const Real *x, FeatureSizes s)
{
    BY_STORAGE(type, T,
               LAUNCH_ROWS(random_backward, T, s.R, s.F, (T *)h, (T *)dx.data, dx.accumulate,
                           (const T *)dout, (const T *)out, (const T *)x, s));
}

template <TensorType type>
static constexpr RandomFeatureKernels random_features_table = { call<random_forward_cuda, type>,
                                                                call<random_backward_cuda, type> };
const RandomFeatureKernels random_features_cuda = random_features_table<TENSOR_REAL>;
const RandomFeatureKernels random_features_cuda_bf16 = random_features_table<TENSOR_BF16>;
