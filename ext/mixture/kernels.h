/* The mixture's kernels, and one pixel under one logistic distribution; mixture.c has the
 * derivation. */
#ifndef TAPEGRAD_MIXTURE_KERNELS_H
#define TAPEGRAD_MIXTURE_KERNELS_H

#include "extend.h"

enum { PIXELS = 256, MIN_LOG_SCALE = -7 };

/* below = S(y) = 1 / (1 + e^-y), above = S(-y) = 1 - S(y), and their logarithms */
typedef struct Logistic {
    Real below, above, log_below, log_above;
} Logistic;

MATH_FUNCTION Logistic logistic(Real y)
{
    const Real e = real_exp(-real_abs(y)), log_larger = -real_log1p(e);
    const Real larger = 1 / (1 + e), smaller = e / (1 + e);
    Logistic result;
    result.below = y < 0 ? smaller : larger;
    result.above = y < 0 ? larger : smaller;
    result.log_below = y < 0 ? log_larger + y : log_larger;
    result.log_above = y < 0 ? log_larger : log_larger - y;
    return result;
}

/* ln P of a pixel's bin, and its derivatives with respect to mean and log scale */
typedef struct LogisticBin {
    Real log_p, dmean, dlog_scale;
} LogisticBin;

/* Branch-free: computes all cases and selects one. */
MATH_FUNCTION LogisticBin logistic_bin(int32_t pixel, Real mean, Real log_scale)
{
    const bool first = pixel == 0, last = pixel == PIXELS - 1, edge = first || last;
    const Real x = (Real)(2 * pixel - (PIXELS - 1)) / (PIXELS - 1), h = (Real)1 / (PIXELS - 1);
    const Real s = log_scale < MIN_LOG_SCALE ? MIN_LOG_SCALE : log_scale, r = real_exp(-s);
    const Real a = r * (x - mean + h), b = r * (x - mean - h), m = r * (x - mean), w = 2 * h * r;

    const Logistic at_a = logistic(a), at_b = logistic(b);
    const Real q = -real_expm1(-w), p = q * at_a.below * at_b.above;
    const bool small = p <= (Real)1e-5;
    const Real inside_scale = b * at_b.below - a * at_a.above - w * (1 - q) / q;

    const Real y = first ? a : last ? -b : m;
    const Logistic at_y = logistic(y);
    const Real log_half_width = (Real)4.8481163645984005; /* ln 127.5 */
    const Real log_small = at_y.log_below + at_y.log_above - s - log_half_width;
    const Real difference = at_y.below - at_y.above; /* S(m) - S(-m) of the derivatives */

    LogisticBin bin;
    bin.log_p = edge ? at_y.log_below : small ? log_small : real_log(p);
    bin.dmean = first   ? -at_y.above
                : last  ? at_y.above
                : small ? difference
                        : at_b.below - at_a.above;
    bin.dmean *= r;
    bin.dlog_scale = edge ? -y * at_y.above : small ? y * difference - 1 : inside_scale;
    bin.dlog_scale = log_scale < MIN_LOG_SCALE ? 0 : bin.dlog_scale;
    return bin;
}

/* max + ln sum = ln sum_i e^x_i over the values added so far, an online log-sum-exp. sum
 * becomes NaN with the first NaN; max never does. */
typedef struct LogSum {
    Real max, sum;
} LogSum;

/* The initial maximum is below all values that occur, yet finite, so that minus infinity may be
 * added first. */
#define EMPTY_LOG_SUM ((LogSum){ (Real)-1e38, 0 })

MATH_FUNCTION LogSum log_sum_add(LogSum so_far, Real x)
{
    const Real other = real_exp(-real_abs(x - so_far.max));
    const bool larger = x > so_far.max;
    LogSum result = { larger ? x : so_far.max,
                      larger ? so_far.sum * other + 1 : so_far.sum + other };
    return result;
}

/* A = ln sum_k e^logit_k, and B = ln sum_k e^(logit_k + ln P_k) relative to A.max */
typedef struct MixtureSums {
    LogSumExp A, B;
} MixtureSums;

/* A - B */
SHARED_FUNCTION double mixture_loss(MixtureSums s)
{
    return (double)s.A.log_sum - (double)s.B.max - (double)s.B.log_sum;
}

/* e^(logit + ln P - B) */
MATH_FUNCTION Real posterior_probability(Real logit, Real log_p, MixtureSums s)
{
    return real_exp(log_probability(logit - s.A.max + log_p, s.B));
}

/* -------------------------------------------------------------------------------------- a pixel
 * Bitwise the same on every device and with every compiler, as op_sample's symbols. */

/* ln x, as math_log of ops/shared/math.h, for normal x > 0 */
MATH_FUNCTION float exact_log(float x)
{
    const int32_t root_half = 0x3f3504f3;
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const float k = (float)((bits - root_half) >> 23);
    bits = ((bits - root_half) & 0x7fffff) + root_half;
    memcpy(&x, &bits, sizeof x);
    const float f = x - 1, s = f / (2 + f), z = s * s;
    const float r = fmaf(fmaf(0.298714608f, z, 0.399775684f), z, 0.666667759f);
    return fmaf(k, 0.693359375f, f - fmaf(s, fmaf(-z, r, f), k * 2.12194440e-4f));
}

/* The pixel nearest to mean + e^s ln(v / (1 - v)), v = (word + 1/2) 2^-32, s = log_scale clamped to
 * [-7, 64]: -7 as in op_discretized_logistic_mixture; above 64 no pixel changes. */
MATH_FUNCTION int32_t logistic_pixel(Real mean, Real log_scale, uint32_t word)
{
    const int64_t part = 2 * (int64_t)word + 1, whole = (int64_t)1 << 33;
    const float log_odds = exact_log((float)part / (float)(whole - part));
    const float s = log_scale > MIN_LOG_SCALE ? (float)log_scale : MIN_LOG_SCALE;
    const ExactExp e = exact_exp(s < 64 ? s : 64);
    const int32_t bits = (e.exponent + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    float x = fmaf(e.fraction * power, log_odds, (float)mean);
    x = x > -1 ? x : -1;
    x = x < 1 ? x : 1;
    return (int32_t)fmaf(x, 127.5f, 128); /* (x + 1) 255 / 2, to the nearest */
}

/* The third word of the Philox counter of which op_sample's row r has used the first two; start: of
 * tape_random_start. */
MATH_FUNCTION uint32_t pixel_word(Random random, const uint64_t *start, int64_t r)
{
    const uint64_t counter = random.counter + (start ? *start : 0);
    return philox(random.seed, random.stream, counter + (uint64_t)r).word[2];
}

typedef struct MixtureKernels {
    /* out [] = the loss, sums [R] of the pixels; parameters [R, 3 K], targets [R] */
    void (*forward)(Real *out, MixtureSums *sums, const Real *parameters, const int32_t *targets,
                    int64_t R, int64_t K);
    /* d [R, 3 K] <- the gradient by parameters, from dout [] */
    void (*backward)(Gradient d, const Real *dout, const MixtureSums *sums, const Real *parameters,
                     const int32_t *targets, int64_t R, int64_t K);
    /* out [R] = a pixel of component k [R] of each mixture */
    void (*sample)(int32_t *out, const int32_t *k, const Real *parameters, Random random,
                   const uint64_t *start, int64_t R, int64_t K);
} MixtureKernels;
extern const MixtureKernels mixture_plain, mixture_cuda;
C_FUNCTION const MixtureKernels *mixture_kernels(const Tensor *tensor);

#endif
