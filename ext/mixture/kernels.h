/* One pixel under one logistic distribution, shared by op_discretized_logistic_mixture and
 * op_sample_logistic_mixture; discretized_logistic_mixture.c has the derivation. */
#ifndef TAPEGRAD_OPS_SHARED_LOGISTIC_MIXTURE_H
#define TAPEGRAD_OPS_SHARED_LOGISTIC_MIXTURE_H

#include "autograd/tape.h"
#include "ops/shared/math.h"

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

#ifndef __cplusplus
/* Raises in the operation's name unless parameters is [..., 3 K]. */
static inline void check_mixture(Tape *tape, const char *operation, const Tensor *parameters)
{
    if (parameters->shape.rank < 1 || shape_columns(parameters->shape) % 3 != 0)
        tape_error(tape,
                   "%s: parameters %s, expected [..., 3 K]: the logits, the means and the "
                   "logarithms of the scales of K distributions",
                   operation, tensor_text(parameters).text);
}
#endif

#endif
