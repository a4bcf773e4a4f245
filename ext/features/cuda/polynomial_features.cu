#include "ext/features/cuda/polynomial.cuh"

template <typename T> __global__ void polynomial_forward(T *out, const T *x, FeatureSizes s)
{
    GRID_FOR(k, s.R * s.F) {
        const int64_t r = quotient(k, s.F);
        store(&out[k], polynomial_feature(x + r * s.D, k - r * s.F, s.D));
    }
}

/* The derivative by element i of a row. For each d, the element is the first of pair i, and the
 * second of the pair d before. */
template <typename T>
__device__ static Real polynomial_gradient(const T *g, const T *x, int64_t i, int64_t D)
{
    Real sum = SQRT_2 * load(&g[1 + i]);
    g += 1 + D;
    for (int64_t d = 0; d <= D / 2; d++, g += D) {
        const int64_t pairs = polynomial_pairs(d, D);
        const int64_t after = i + d < D ? i + d : i + d - D, before = i < d ? i - d + D : i - d;
        Real pair = 0;
        if (i < pairs)
            pair += load(&g[i]) * load(&x[after]);
        if (before < pairs)
            pair += load(&g[before]) * load(&x[before]);
        sum += polynomial_factor(d) * pair;
    }
    return sum;
}

template <typename T>
__global__ void polynomial_backward(T *dx, bool accumulate, const T *dout, const T *x,
                                    FeatureSizes s)
{
    GRID_FOR(k, s.R * s.D) {
        const int64_t r = quotient(k, s.D);
        contribute(&dx[k], accumulate,
                   polynomial_gradient(dout + r * s.F, x + r * s.D, k - r * s.D, s.D));
    }
}

static void polynomial_forward_cuda(TensorType type, Real *out, const Real *x, FeatureSizes s)
{
    BY_STORAGE(type, T,
               LAUNCH(polynomial_forward<T>, blocks_for(s.R * s.F), THREADS, 0, (T *)out,
                      (const T *)x, s));
}

static void polynomial_backward_cuda(TensorType type, Gradient dx, const Real *dout, const Real *x,
                                     FeatureSizes s)
{
    BY_STORAGE(type, T,
               LAUNCH(polynomial_backward<T>, blocks_for(s.R * s.D), THREADS, 0, (T *)dx.data,
                      dx.accumulate, (const T *)dout, (const T *)x, s));
}

template <TensorType type>
static constexpr PolynomialFeatureKernels polynomial_features_table = {
    call<polynomial_forward_cuda, type>, call<polynomial_backward_cuda, type>
};
const PolynomialFeatureKernels polynomial_features_cuda = polynomial_features_table<TENSOR_REAL>;
const PolynomialFeatureKernels polynomial_features_cuda_bf16 =
    polynomial_features_table<TENSOR_BF16>;
