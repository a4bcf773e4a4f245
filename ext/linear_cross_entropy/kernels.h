/* The kernels of op_linear_cross_entropy; products and the bias are those of op_linear. */
#ifndef TAPEGRAD_LINEAR_CROSS_ENTROPY_KERNELS_H
#define TAPEGRAD_LINEAR_CROSS_ENTROPY_KERNELS_H

#include "extend.h"

/* A block of rows; all of it is Real. */
typedef struct LogitsBlock {
    Real *logits;           /* [R, V] */
    LogSumExp *l;           /* [R] */
    const int32_t *targets; /* [R] */
    const Real *weights;    /* [R], or NULL: all 1 */
    int64_t R, V;
} LogitsBlock;

/* h and dx have the dtype of activations, all others are Real. */
typedef struct LinearCrossEntropyKernels {
    /* l, and losses [R] = w_r (l_r - logits_r,t_r), unless losses is NULL: then l is given.
     * h [R, V] = scale w_r (softmax(logits_r) - [c = t_r]), unless h is NULL; scale is *g / *W, or
     * 1 if they are NULL. A Real h is the logits' memory; another one makes them undefined. */
    void (*rows)(Real *losses, Real *h, const Real *g, const Real *W, LogitsBlock block);
    /* dx [n] <- *g / *W sums [n] */
    void (*scale)(Gradient dx, const Real *g, const Real *W, const Real *sums, int64_t n);
} LinearCrossEntropyKernels;
extern const LinearCrossEntropyKernels linear_cross_entropy_plain, linear_cross_entropy_cpu_bf16,
    linear_cross_entropy_cuda, linear_cross_entropy_cuda_bf16;
C_FUNCTION const LinearCrossEntropyKernels *linear_cross_entropy_kernels(Device *device,
                                                                         TensorType type);

/* On the CPU in bf16, too: `rows` of row r, h in the logits' memory if with_h. */
C_FUNCTION void linear_cross_entropy_row(Real *losses, bool with_h, double scale,
                                         const LogitsBlock *block, int64_t r);

SHARED_FUNCTION double quotient_or_one(const Real *g, const Real *W)
{
    return g ? (double)*g / (double)*W : 1;
}

#endif
