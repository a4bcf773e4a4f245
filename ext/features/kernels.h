/* The kernels of polynomial and random features; the order of the products in a row of polynomial
 * features. */
#ifndef TAPEGRAD_FEATURES_KERNELS_H
#define TAPEGRAD_FEATURES_KERNELS_H

#include "extend.h"

/* R rows of D elements, of which a feature map makes rows of F features. */
typedef struct FeatureSizes {
    int64_t R, F, D;
} FeatureSizes;

typedef struct PolynomialFeatureKernels {
    /* out [R, F] = the polynomial features of each row of x [R, D], F = polynomial_count(D) */
    void (*forward)(Real *out, const Real *x, FeatureSizes s);
    void (*backward)(Gradient dx, const Real *dout, const Real *x, FeatureSizes s);
} PolynomialFeatureKernels;

typedef struct RandomFeatureKernels {
    /* out [R, F] = e^(y_rf - |x_r|^2 / 2) / sqrt F;  y [R, F] (Real), x [R, D] */
    void (*forward)(Real *out, const Real *y, const Real *x, FeatureSizes s);
    /* h [R, F] = dout out;  dx [R, D] <- -(sum_f h_rf) x_r, unless dx.data is NULL */
    void (*backward)(Real *h, Gradient dx, const Real *dout, const Real *out, const Real *x,
                     FeatureSizes s);
} RandomFeatureKernels;

extern const PolynomialFeatureKernels polynomial_features_plain, polynomial_features_cpu_bf16,
    polynomial_features_cuda, polynomial_features_cuda_bf16;
extern const RandomFeatureKernels random_features_plain, random_features_cpu_bf16,
    random_features_cuda, random_features_cuda_bf16;
C_FUNCTION const PolynomialFeatureKernels *polynomial_features_kernels(const Tensor *x);
C_FUNCTION const RandomFeatureKernels *random_features_kernels(const Tensor *x);

#define SQRT_2 ((Real)1.4142135623730951)

/* The number of features of D elements. */
MATH_FUNCTION int64_t polynomial_count(int64_t D)
{
    return 1 + D + D * (D + 1) / 2;
}

/* The products follow the 1 and the D linear features, by cyclic distance d = 0, ..., D / 2:
 * product d D + i is x_i x_j, j = i + d mod D. At d = D / 2 this has every pair twice, and only the
 * first half is stored. */
MATH_FUNCTION int64_t polynomial_pairs(int64_t d, int64_t D)
{
    return d > 0 && 2 * d == D ? d : D;
}

/* The factor of the products of elements at distance d. */
MATH_FUNCTION Real polynomial_factor(int64_t d)
{
    return d ? SQRT_2 : 1;
}

/* out [polynomial_count(D)], x [D] */
MATH_FUNCTION void polynomial_row(Real *out, const Real *x, int64_t D)
{
    out[0] = 1;
    for (int64_t i = 0; i < D; i++)
        out[1 + i] = SQRT_2 * x[i];
    out += 1 + D;
    for (int64_t d = 0; d <= D / 2; d++, out += D) {
        const int64_t pairs = polynomial_pairs(d, D), inside = pairs < D - d ? pairs : D - d;
        const Real factor = polynomial_factor(d);
        for (int64_t i = 0; i < inside; i++)
            out[i] = factor * x[i] * x[i + d];
        for (int64_t i = inside; i < pairs; i++)
            out[i] = factor * x[i] * x[i + d - D];
    }
}

#endif
