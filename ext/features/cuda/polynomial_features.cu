#include "ops/kernels.h"
#include "ext/features/cuda/polynomial.cuh"

template <typename T>
__global__ void polynomial_features_forward(T *out, const T *x, int64_t R, int64_t F, int64_t D)
{
    GRID_FOR(k, R * F) {
        const int64_t r = quotient(k, F);
        store(&out[k], polynomial_feature(x + r * D, k - r * F, D));
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
__global__ void polynomial_features_backward(T *dx, bool accumulate, const T *dout, const T *x,
                                             int64_t R, int64_t F, int64_t D)
{
    GRID_FOR(k, R * D) {
        const int64_t r = quotient(k, D);
        contribute(&dx[k], accumulate, polynomial_gradient(dout + r * F, x + r * D, k - r * D, D));
    }
}

extern "C" void polynomial_features_forward_cuda(TensorType type, Real *out, const Real *x,
                                                 int64_t R, int64_t F, int64_t D)
{
    BY_STORAGE(type, T,
               LAUNCH(polynomial_features_forward<T>, blocks_for(R * F), THREADS, 0, (T *)out,
                      (const T *)x, R, F, D));
}

extern "C" void polynomial_features_backward_cuda(TensorType type, Gradient dx, const Real *dout,
                                                  const Real *x, int64_t R, int64_t F, int64_t D)
{
    BY_STORAGE(type, T,
               LAUNCH(polynomial_features_backward<T>, blocks_for(R * D), THREADS, 0, (T *)dx.data,
                      dx.accumulate, (const T *)dout, (const T *)x, R, F, D));
}
