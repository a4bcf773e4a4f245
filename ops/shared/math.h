/* e^x and related functions of Real under one name on every device, for formulas that C and CUDA
 * share. On CUDA, and in a double-precision build, which serves to check gradients, they are those
 * of CUDA or libm. In float on the CPU they are branch-free, so that compilers vectorize loops over
 * them; libm is more accurate but scalar.
 *
 * Largest errors in float on the CPU, in ulp (checked by tests/test_math.c):
 *   real_exp 1.1   real_expm1 1.7   real_tanh 2.6   real_sigmoid 2.6
 *   real_log 1     real_log1p 1.5   real_normal 9 (distribution), 3 (density)
 * All functions propagate NaN, but x^0 is 1; infinities give the limits. */
#ifndef TAPEGRAD_OPS_SHARED_MATH_H
#define TAPEGRAD_OPS_SHARED_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "tensor/kernel.h"

#ifdef __cplusplus
#include <cuda_runtime.h>
#define MATH_FUNCTION __device__ static inline
#else
#define MATH_FUNCTION static inline __attribute__((always_inline))
#endif

#ifdef TAPEGRAD_DOUBLE
typedef int64_t RealBits;
#else
typedef int32_t RealBits;
#endif

/* The bits of a Real as an integer, and the inverse. */
MATH_FUNCTION RealBits real_bits(Real x)
{
    RealBits bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
MATH_FUNCTION Real real_from_bits(RealBits bits)
{
    Real x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The standard normal distribution function at x, and its density. */
typedef struct Normal {
    Real distribution, density;
} Normal;

#if defined(__cplusplus) || defined(TAPEGRAD_DOUBLE)

/* clang-format off */
MATH_FUNCTION Real real_abs(Real x)     { return fabs(x); }
MATH_FUNCTION Real real_sqrt(Real x)    { return sqrt(x); }
MATH_FUNCTION Real real_sin(Real x)     { return sin(x); }
MATH_FUNCTION Real real_cos(Real x)     { return cos(x); }
MATH_FUNCTION Real real_exp(Real x)     { return exp(x); }
MATH_FUNCTION Real real_expm1(Real x)   { return expm1(x); }
MATH_FUNCTION Real real_log(Real x)     { return log(x); }
MATH_FUNCTION Real real_log1p(Real x)   { return log1p(x); }
MATH_FUNCTION Real real_pow(Real x, Real c) { return pow(x, c); }
MATH_FUNCTION Real real_tanh(Real x)    { return tanh(x); }
MATH_FUNCTION Real real_sigmoid(Real x) { return 1 / (1 + exp(-x)); }
/* factor / (1 + e^-x) in one division */
MATH_FUNCTION Real real_times_sigmoid(Real factor, Real x) { return factor / (1 + exp(-x)); }
/* clang-format on */

MATH_FUNCTION Normal real_normal(Real x)
{
#ifdef __cplusplus
    const Real distribution = normcdf(x);
#else
    const Real distribution = erfc(x * -0.70710678118654752) / 2;
#endif
    const Normal result = { distribution, (Real)0.39894228040143268 * exp(-x * x / 2) };
    return result;
}

#else

MATH_FUNCTION Real real_abs(Real x)
{
    return fabsf(x);
}
MATH_FUNCTION Real real_sqrt(Real x)
{
    return sqrtf(x);
}
/* libm's, which are scalar */
MATH_FUNCTION Real real_sin(Real x)
{
    return sinf(x);
}
MATH_FUNCTION Real real_cos(Real x)
{
    return cosf(x);
}
MATH_FUNCTION Real real_pow(Real x, Real c)
{
    return powf(x, c);
}

/* e^x = 2^k e^r with k the integer nearest to x / ln 2 and r = x - k ln 2, |r| <= ln 2 / 2.
 *   k: adding 3 2^22 rounds off the fraction of a float and leaves k in its lowest bits.
 *   r: k ln 2 is subtracted in two parts; k times the first is exact (Cody and Waite 1980).
 *   q = e^r - 1 = r + r^2 P(r), P of degree 4 with minimax relative error 1.4e-8.
 * The struct has q and s = 2^(k-1), half of 2^k: 2^128 overflows a float, e^88.7 does not. */
typedef struct MathExp {
    float q, s;
} MathExp;

/* e^(x + y) for -87.3 <= x <= 89 or NaN, and small y. At k = -126 s becomes 0. */
MATH_FUNCTION MathExp math_exp_of_sum(float x, float y)
{
    const float shift = 0x3p22f;
    float shifted = x * 1.44269504f + shift; /* 1 / ln 2 */
    float k = shifted - shift;
    float r = x - k * 0.693359375f - (k * -2.12194440e-4f - y);
    float p = 0.00138683163f;
    p = p * r + 0.00836642366f;
    p = p * r + 0.0416674651f;
    p = p * r + 0.16666545f;
    p = p * r + 0.49999997f;
    uint32_t exponent = (uint32_t)real_bits(shifted) + 126; /* << 23 drops its high bits */
    return (MathExp){ r + r * r * p, real_from_bits((int32_t)(exponent << 23)) };
}

MATH_FUNCTION MathExp math_exp(float x)
{
    return math_exp_of_sum(x, 0);
}

/* e^x; 0 for x < -86.99, so that no result is subnormal: subnormal numbers are slow. */
MATH_FUNCTION Real real_exp(Real x)
{
    x = x < -87.3f ? -87.3f : x;
    x = x > 89 ? 89 : x;
    MathExp e = math_exp(x);
    return e.s * (2 + 2 * e.q);
}

/* e^x - 1 = 2^k (q + 1) - 1, accurate for small x too. */
MATH_FUNCTION Real real_expm1(Real x)
{
    x = x < -20 ? -20 : x;
    x = x > 89 ? 89 : x;
    MathExp e = math_exp(x);
    return 2 * (e.s * e.q + (e.s - 0.5f));
}

/* tanh x = (e^2x - 1) / (e^2x + 1), which rounds to 1 from 2x = 20 on. */
MATH_FUNCTION Real real_tanh(Real x)
{
    float y = 2 * x;
    float m = real_expm1(y > 20 ? 20 : y);
    return m / (m + 2);
}

/* 1 / (1 + e^-x); the error bound holds for x > -87, below the result tends to 0 */
MATH_FUNCTION Real real_sigmoid(Real x)
{
    return 1 / (1 + real_exp(-x));
}
MATH_FUNCTION Real real_times_sigmoid(Real factor, Real x)
{
    return factor * real_sigmoid(x);
}

/* ln x = k ln 2 + ln(1 + f), where x = 2^k (1 + f) and sqrt(1/2) <= 1 + f < sqrt 2.
 * With s = f / (2 + f), ln(1 + f) = ln (1 + s) / (1 - s) = 2 s + s z R(z), z = s^2, R of degree 2;
 * and 2 s = f - s f, so that the error of s has little effect. For normal, finite x > 0. */
MATH_FUNCTION float math_log(float x)
{
    const int32_t root_half = 0x3f3504f3; /* the bits of sqrt(1/2) */
    int32_t offset = real_bits(x) - root_half;
    float k = (float)(offset >> 23);
    float f = real_from_bits((offset & 0x7fffff) + root_half) - 1;
    float s = f / (2 + f);
    float z = s * s;
    float r = (0.298714608f * z + 0.399775684f) * z + 0.666667759f;
    return k * 0.693359375f + (f - (s * (f - z * r) + k * 2.12194440e-4f));
}

/* ln x; -infinity at 0, NaN below. Subnormal x are scaled by 2^25 first. */
MATH_FUNCTION Real real_log(Real x)
{
    float scaled = x < 0x1p-126f ? x * 0x1p25f : x;
    float shift = x < 0x1p-126f ? -17.3286795f : 0; /* -25 ln 2 */
    float y = math_log(scaled) + shift;
    float limit = x < 0 ? NAN : x == 0 ? -INFINITY : x;
    return x > 0 && x < INFINITY ? y : limit;
}

/* ln(1 + x) for 0 <= x < infinity. w = 1 + x is rounded; the rounding error c = x - (w - 1) is
 * corrected by adding ln(1 + c / w), which is c / w to first order. */
MATH_FUNCTION Real real_log1p(Real x)
{
    float w = 1 + x;
    return math_log(w) + (x - (w - 1)) / w;
}

/* u = |x|. P(-u) = e^(-u^2 / 2) g(u), and g(u) = e^(u^2 / 2) erfc(u / sqrt 2) / 2 decreases slowly:
 * g = w Q(w), w = 1 / (1 + 0.3 u), with relative error 2e-7 up to u = 13.2, where P is subnormal.
 * z is u to 12 bits, so z^2 is exact: rounding u^2 would cost P all the digits of u^2. */
MATH_FUNCTION Normal real_normal(Real x)
{
    float u = fabsf(x);
    u = u > 13.2f ? 13.2f : u;
    float z = real_from_bits(real_bits(u) & ~0xfff);
    MathExp e = math_exp_of_sum(-0.5f * z * z, -0.5f * (u - z) * (u + z));
    float power = e.s * (2 + 2 * e.q);
    float w = 1 / (1 + 0.3f * u);
    float q = 0.0360362771f;
    q = q * w - 0.158713321f;
    q = q * w + 0.208964127f;
    q = q * w - 0.0560954845f;
    q = q * w + 0.129843221f;
    q = q * w + 0.0995231191f;
    q = q * w + 0.120816884f;
    q = q * w + 0.119625166f;
    float tail = power * (w * q);
    return (Normal){ x < 0 ? tail : 1 - tail, 0.398942280f * power };
}

#endif

/* l = ln sum_c e^x_c of a row, as the sum of max = max_c x_c and log_sum = ln sum_c e^(x_c - max).
 * One Real would round log_sum to the digits that max leaves. */
typedef struct LogSumExp {
    Real max, log_sum;
} LogSumExp;

/* x - l, the logarithm of softmax */
MATH_FUNCTION Real log_probability(Real x, LogSumExp l)
{
    return (x - l.max) - l.log_sum;
}

#endif
