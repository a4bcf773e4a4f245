/* The arguments of the losses' kernels. */
#ifndef TAPEGRAD_OPS_LOSSES_LOSSES_H
#define TAPEGRAD_OPS_LOSSES_LOSSES_H

#include "autograd/tape.h"
#include "ops/shared/math.h"

/* logits [R, C], targets [R], weights [R] or NULL: all 1 */
typedef struct CrossEntropy {
    const Real *logits;
    const int32_t *targets;
    const Real *weights;
    int64_t R, C;
} CrossEntropy;

#ifndef __cplusplus
/* One row of C logits, on the calling thread: dlogits <- factor (softmax - [c = target]). */
void cross_entropy_row_backward(Gradient dlogits, const Real *logits, LogSumExp l, int32_t target,
                                Real factor, int64_t C);

/* g w_r / W */
static inline Real cross_entropy_factor(const CrossEntropy *in, int64_t r, Real dout, Real W)
{
    return (Real)((in->weights ? (double)in->weights[r] : 1) * ((double)dout / (double)W));
}

/* The log-sums of one pixel: A = ln sum_k e^logit_k, B = ln sum_k e^(logit_k + ln P_k). */
typedef struct MixtureSums {
    Real A, B;
} MixtureSums;

/* Of one pixel, on the calling thread; p [3 K]: its mixture. */
MixtureSums logistic_mixture_row(const Real *p, int32_t target, int64_t K);
/* d [3 K] <- the gradient by p; g = dL/dout / R */
void logistic_mixture_row_backward(Gradient d, Real g, MixtureSums sums, const Real *p,
                                   int32_t target, int64_t K);
/* sum_r (A_r - B_r) / R */
Real logistic_mixture_mean(const Real *saved, int64_t R);
#endif

#endif
