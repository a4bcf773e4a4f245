/* Sampling's kernels, and op_sample's arithmetic, bitwise the same on every device and with every
 * compiler: integers, and floating-point operations with correct rounding. A product that is added
 * to is an explicit fmaf, which some compilers would contract and some not. */
#ifndef TAPEGRAD_SAMPLING_KERNELS_H
#define TAPEGRAD_SAMPLING_KERNELS_H

#include <float.h>

#include "extend.h"

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

/* The row's number, uniform in steps of 2^-64: the first two words of its Philox counter. */
MATH_FUNCTION uint64_t sampler_uniform(const Sampler *sampler, int64_t row)
{
    const uint64_t counter = sampler->random.counter + (sampler->start ? *sampler->start : 0);
    const Philox draw =
        philox(sampler->random.seed, sampler->random.stream, counter + (uint64_t)row);
    return (uint64_t)draw.word[1] << 32 | draw.word[0];
}

typedef struct SamplingKernels {
    /* out [R] = one symbol of each row of logits [R, C] */
    void (*sample)(int32_t *out, const Real *logits, Sampler sampler, int64_t R, int64_t C);
    /* out [n] = standard normal numbers from the generator, to whose counter *start is added unless
     * start, in device memory, is NULL */
    void (*normal)(Real *out, Random random, const uint64_t *start, int64_t n);
} SamplingKernels;
extern const SamplingKernels sampling_plain, sampling_cuda;
C_FUNCTION const SamplingKernels *sampling_kernels(const Tensor *tensor);
C_FUNCTION void draw_normal_plain(Real *out, Random random, const uint64_t *start, int64_t n);

#endif
