/* The kernels of this room. */
#ifndef TAPEGRAD_OPS_LOSSES_KERNELS_H
#define TAPEGRAD_OPS_LOSSES_KERNELS_H

#include "ops/shared/math.h"
#include "tensor/kernel.h"

/* Logits [B, T, C], targets [B, S] */
typedef struct CtcSizes {
    int64_t B, T, C, S;
} CtcSizes;
OLD_KERNEL(void, ctc_forward, Real *losses, Real *alpha, LogSumExp *log_sums, Real *workspace,
           const Real *logits, const int32_t *targets, const int32_t *lengths,
           const int32_t *target_lengths, bool ignore_impossible, CtcSizes size);
OLD_KERNEL(void, ctc_backward, Real *dlogits, bool accumulate, const Real *dlosses,
           const Real *alpha, const LogSumExp *log_sums, Real *workspace, const Real *logits,
           const int32_t *targets, const int32_t *lengths, const int32_t *target_lengths,
           bool ignore_impossible, CtcSizes size);

#endif
