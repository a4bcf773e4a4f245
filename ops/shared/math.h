/* e^x and related functions of Real under one name on every device, for formulas that C and CUDA
 * share. On CUDA, and in a double-precision build, which serves to check gradients, they are those
 * of CUDA or libm. In float on the CPU they are branch-free, so that compilers vectorize loops over
 * them; libm is more accurate but scalar.
 *
 * Largest errors in float on the CPU, in ulp (checked by tests/test_math.c):
 *   real_exp 1.1   real_expm1 1.7   real_tanh 2.6   real_sigmoid 2.6
 *   real_log 1     real_log1p 1.5   real_pow 0.54   real_normal 9 (distribution), 3 (density)
 *   real_sin, real_cos 1.6, for |x| <= MATH_NEAR, of all floats; libm's beyond
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

/* sin(x + quarters pi / 2) of libm, in double, or of CUDA: quarters 0, 1, 2 */
MATH_FUNCTION Real math_far_sine(Real x, int quarters)
{
    const Real y = (Real)(quarters & 1 ? cos(x) : sin(x));
    return quarters & 2 ? -y : y;
}

#if defined(__cplusplus) || defined(TAPEGRAD_DOUBLE)

/* clang-format off */
MATH_FUNCTION Real real_abs(Real x)     { return fabs(x); }
MATH_FUNCTION Real real_sqrt(Real x)    { return sqrt(x); }
MATH_FUNCTION Real real_exp(Real x)     { return exp(x); }
MATH_FUNCTION Real real_expm1(Real x)   { return expm1(x); }
MATH_FUNCTION Real real_log(Real x)     { return log(x); }
MATH_FUNCTION Real real_log1p(Real x)   { return log1p(x); }
MATH_FUNCTION Real real_pow(Real x, Real c) { return pow(x, c); }
MATH_FUNCTION Real real_tanh(Real x)    { return tanh(x); }
MATH_FUNCTION Real real_sigmoid(Real x) { return 1 / (1 + exp(-x)); }
/* factor / (1 + e^-x) in one division */
MATH_FUNCTION Real real_times_sigmoid(Real factor, Real x) { return factor / (1 + exp(-x)); }
MATH_FUNCTION bool math_near(Real x)    { return x == x; }
MATH_FUNCTION Real math_sine(Real x, int quarters) { return math_far_sine(x, quarters); }
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

/* x^c = 2^(c l) with l = log2 |x| = e + log2 m and sqrt(1/2) <= m < sqrt 2: in double,
 * since c l needs 8 digits behind the point, and has 3 before it.
 * With s = (m - 1) / (m + 1), log2 m = s L(s^2), relative error 4e-12. */
MATH_FUNCTION double math_log2(float u)
{
    const int32_t root_half = 0x3f3504f3; /* as in math_log, also the scale of subnormal u */
    const float scaled = u < 0x1p-126f ? u * 0x1p25f : u;
    const float e_of_scale = u < 0x1p-126f ? 25 : 0;
    const int32_t offset = real_bits(scaled) - root_half;
    const float e = (float)(offset >> 23) - e_of_scale;
    const double m = (double)real_from_bits((offset & 0x7fffff) + root_half);
    const double s = (m - 1) / (m + 1), z = s * s;
    double l = 0.34073221220899091;
    l = l * z + 0.41167261051062704;
    l = l * z + 0.57708358667817417;
    l = l * z + 0.96179667333335606;
    l = l * z + 2.8853900817900926;
    l = l * s + (double)e;
    l = u == 0 ? -1e300 : l;
    return u < INFINITY ? l : 1e300;
}

/* 2^y as a float; 2^k is built of its bits, k the integer nearest to y: y + 3 2^51 has k in its
 * lowest bits. f = y - k, 2^f = 1 + f P(f), P of degree 5, relative error 2e-9. */
MATH_FUNCTION float math_exp2(double y)
{
    y = y < -200 ? -200 : y;
    y = y > 200 ? 200 : y;
    const double shifted = y + 0x3p51, f = y - (shifted - 0x3p51);
    double p = 0.000153533618351;
    p = p * f + 0.00133988744399;
    p = p * f + 0.00961843735817;
    p = p * f + 0.0555033247104;
    p = p * f + 0.240226479136;
    p = p * f + 0.693147202855;
    p = p * f + 1;
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return (float)(p * scale);
}

/* For x < 0 NaN unless c is an integer, and negative where c is odd. NaN comes by 0 / 0, not by a
 * condition on c: with that, gcc 12 does not vectorize a loop whose c is one number. */
MATH_FUNCTION Real real_pow(Real x, Real c)
{
    const float u = fabsf(x), is_whole = (float)(floorf(c) == c), is_zero = (float)(c == 0);
    const float is_odd = (float)(c - 2 * floorf(c / 2) == 1);
    float y = math_exp2(math_log2(u) * (double)c);
    y = u == 1 ? 1 : y;
    y = real_bits(x) < 0 ? y * (1 - 2 * is_odd) : y;
    y = ((x < 0) & (u < INFINITY)) ? y * (is_whole / is_whole) : y;
    return x != x ? is_zero / is_zero : y;
}

/* The x whose distance r from the nearest k pi / 2 math_sine has to all digits. */
#define MATH_NEAR 1e5f
MATH_FUNCTION bool math_near(Real x)
{
    return fabsf(x) <= MATH_NEAR;
}

/* sin(x + quarters pi / 2) for math_near(x) and quarters 0, 1, 2; r = |x| - k pi / 2 with k as in
 * e^x, so |r| <= 0.795. In double, pi / 2 is subtracted in two parts; k < 2^17 times the first, of
 * 36 bits, is exact.
 *   sin r = r + r^3 S(r^2) and cos r = 1 - r^2 / 2 + r^4 C(r^2), S and C of degree 2 with relative
 *   errors of 4.2e-9 and 1.5e-10
 * The lowest bit of k + quarters chooses; its next bit and, for sines, the sign of x negate. */
MATH_FUNCTION Real math_sine(Real x, int quarters)
{
    const float u = fabsf(x), shift = 0x3p22f;
    const float shifted = u * 0.636619772f + shift, k = shifted - shift; /* 2 / pi */
    const double high = (double)u - (double)k * 0x1.921fb5444p0;
    const float r = (float)(high - (double)k * 0x1.68c234c4c6629p-39), z = r * r;
    const float s = ((-1.95074608e-4f * z + 8.33210442e-3f) * z - 0.166666538f) * z * r + r;
    const float c = ((2.44294188e-5f * z - 1.38872943e-3f) * z + 0.0416666456f) * (z * z);
    const uint32_t turn = (uint32_t)real_bits(shifted) + (uint32_t)quarters;
    const uint32_t value = (uint32_t)real_bits(turn & 1 ? c + (1 - 0.5f * z) : s);
    const uint32_t odd = quarters & 1 ? 0 : (uint32_t)real_bits(x) & 0x80000000u;
    return real_from_bits((int32_t)(value ^ (turn & 2) << 30 ^ odd));
}

#endif

/* sin(x + quarters pi / 2) for every x. Compilers do not vectorize a loop over it, unless they know
 * that all x are near: see unary.c. */
MATH_FUNCTION Real math_any_sine(Real x, int quarters)
{
    return math_near(x) ? math_sine(x, quarters) : math_far_sine(x, quarters);
}
MATH_FUNCTION Real real_sin(Real x)
{
    return math_any_sine(x, 0);
}
MATH_FUNCTION Real real_cos(Real x)
{
    return math_any_sine(x, 1);
}

/* e^x = fraction 2^exponent, as math_exp, but bitwise the same on every device and with every
 * compiler, as random choices are: a product that is added to is an explicit fmaf, which some
 * compilers would contract and some not. For -87 <= x <= 88; fraction is between about
 * sqrt(1/2) and sqrt 2. */
typedef struct ExactExp {
    float fraction;
    int32_t exponent;
} ExactExp;

MATH_FUNCTION ExactExp exact_exp(float x)
{
    const float shift = 0x3p22f, shifted = fmaf(x, 1.44269504f, shift), k = shifted - shift;
    const float r = fmaf(k, 2.12194440e-4f, fmaf(k, -0.693359375f, x));
    float p = fmaf(0.00138683163f, r, 0.00836642366f);
    p = fmaf(p, r, 0.0416674651f);
    p = fmaf(p, r, 0.16666545f);
    p = fmaf(p, r, 0.49999997f);
    ExactExp result = { 1 + fmaf(r * r, p, r), (int32_t)k };
    return result;
}

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

/* w (l - x), the loss of a row of weight w whose target has the logit x */
MATH_FUNCTION Real weighted_loss(Real w, Real x, LogSumExp l)
{
    return w == 0 ? 0 : -w * log_probability(x, l);
}

#endif
