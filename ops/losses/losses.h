/* The arguments of the losses' kernels. */
#ifndef TAPEGRAD_OPS_LOSSES_LOSSES_H
#define TAPEGRAD_OPS_LOSSES_LOSSES_H

#include "ops/shared/math.h"

/* logits [R, C], targets [R], weights [R] or NULL: all 1 */
typedef struct CrossEntropy {
    const Real *logits;
    const int32_t *targets;
    const Real *weights;
    int64_t R, C;
} CrossEntropy;

#endif
