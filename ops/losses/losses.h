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
/* Names of the arguments in error messages. */
typedef struct ClassLabels {
    const char *logits, *targets, *weights;
} ClassLabels;
#define CLASS_LABELS(name) ((ClassLabels){ name ": logits", name ": targets", name ": weights" })

#pragma GCC visibility push(default)

/* Raises unless the arguments are those of op_cross_entropy (ops.h), but all weights may be 0:
 * returns whether they are; false while a CUDA graph is captured. */
bool op_check_classes(Tape *tape, ClassLabels labels, Tensor *logits, Tensor *targets,
                      Tensor *weights);

/* Raises unless the weights are Real, finite and 0 or more. Returns whether all are 0; while a CUDA
 * graph is captured it does not read them and returns false. */
bool op_check_weights(Tape *tape, const char *label, Tensor *weights);

#pragma GCC visibility pop

/* One row of C logits, on the calling thread: dlogits <- factor (softmax - [c = target]). */
void cross_entropy_row_backward(Gradient dlogits, const Real *logits, LogSumExp l, int32_t target,
                                Real factor, int64_t C);

/* g w_r / W */
static inline Real cross_entropy_factor(const CrossEntropy *in, int64_t r, Real dout, Real W)
{
    return (Real)((in->weights ? (double)in->weights[r] : 1) * ((double)dout / (double)W));
}
#endif

#endif
