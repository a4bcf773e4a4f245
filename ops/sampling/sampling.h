/* The arithmetic of op_sample and op_sample_logistic_mixture, bitwise the same on every device and
 * with every compiler: integers, and floating-point operations with correct rounding. A product
 * that is added to is an explicit fmaf: otherwise some compilers would contract it and some not. */
#ifndef TAPEGRAD_OPS_SAMPLING_SAMPLING_H
#define TAPEGRAD_OPS_SAMPLING_SAMPLING_H

#include <float.h>

#include "ext/mixture/kernels.h"
#include "tensor/kernel.h"
#include "tensor/philox.h"

/* ------------------------------------------------------------------------------- exponentials */

/* e^x = fraction 2^exponent, as in ops/shared/math.h, for -87 <= x <= 88; fraction is between about
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

/* ------------------------------------------------------------------------------------ weights
 * A symbol's probability is proportional to floor(2^40 e^((logit - largest) / temperature)). Sums
 * of integers do not depend on the order of addition; these fit in 63 bits. */
enum { MAX_SYMBOLS = 1 << 23 };

/* largest is finite or +infinity. The weight of a logit -infinity or NaN is 0. */
MATH_FUNCTION uint64_t symbol_weight(Real logit, Real largest, Real temperature)
{
    const Real below = logit == largest ? 0 : logit - largest;
    const float x = (float)(below / temperature), min = -28; /* its weight is 0 */
    const ExactExp e = exact_exp(x > min ? x : min);
    return (uint64_t)(uint32_t)(e.fraction * 0x1p30f) << 10 >> -e.exponent;
}

/* The row maximum ignoring NaN; finite if all logits are -infinity. */
MATH_FUNCTION Real at_least_finite(Real largest)
{
#ifdef TAPEGRAD_DOUBLE
    const Real lowest = -DBL_MAX;
#else
    const Real lowest = -FLT_MAX;
#endif
    return largest > lowest ? largest : lowest;
}

/* Logits as unsigned integers in the same order; NaN has key 0, and 0 and -0 have the same key. */
#ifdef TAPEGRAD_DOUBLE
typedef uint64_t LogitKey;
#else
typedef uint32_t LogitKey;
#endif
enum { KEY_BITS = 8 * sizeof(LogitKey) };

MATH_FUNCTION LogitKey logit_key(Real logit)
{
    const LogitKey sign = (LogitKey)1 << (KEY_BITS - 1);
    LogitKey bits;
    memcpy(&bits, &logit, sizeof bits);
    if (logit != logit)
        return 0;
    return logit == 0 ? sign : bits & sign ? ~bits : bits | sign;
}
MATH_FUNCTION Real logit_of_key(LogitKey key)
{
    const LogitKey sign = (LogitKey)1 << (KEY_BITS - 1), bits = key & sign ? key ^ sign : ~key;
    Real logit;
    memcpy(&logit, &bits, sizeof logit);
    return logit;
}

/* The symbols that may be chosen: those with larger keys, and the first `ties` with this key. */
typedef struct KeptSymbols {
    LogitKey key;
    uint64_t ties;
} KeptSymbols;

/* ceil(a b / 2^64) */
MATH_FUNCTION uint64_t product_high_up(uint64_t a, uint64_t b)
{
    return product_high(a, b) + (a * b != 0);
}

/* -------------------------------------------------------------------------------------- draws */
typedef struct Sampler {
    Random random;         /* before the draw of one Philox counter per row */
    const uint64_t *start; /* NULL, or in CUDA device memory: added to random's Philox counter */
    bool greedy;
    Real temperature;
    int64_t top_k;  /* or 0: all */
    uint64_t top_p; /* 2^64 p, or 0: all */
} Sampler;

/* A row's random words: the first two choose a symbol, the third is v of a logistic variable. */
MATH_FUNCTION Philox sampler_draw(const Sampler *sampler, int64_t row)
{
    const uint64_t counter = sampler->random.counter + (sampler->start ? *sampler->start : 0);
    return philox(sampler->random.seed, sampler->random.stream, counter + (uint64_t)row);
}
MATH_FUNCTION uint64_t uniform_of_draw(Philox draw)
{
    return (uint64_t)draw.word[1] << 32 | draw.word[0];
}

#ifndef __cplusplus
/* Chooses the symbol of a row of C logits, from a uniform 64-bit random number: see sample.c. */
int64_t sample_symbol(const Real *logits, int64_t C, const Sampler *sampler, uint64_t uniform);

/* Draws one Philox counter per row; returns a Sampler that keeps all symbols at temperature 1. */
Sampler sampler_new(Tape *tape, int64_t R);
#endif

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

#endif
