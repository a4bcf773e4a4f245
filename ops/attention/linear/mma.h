/* Causal linear attention on tensor cores: see mma.cuh. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_MMA_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_MMA_H

#include "ops/attention/shared/arguments.h"

/* Whether the device's shared memory suffices for heads of this size. */
bool causal_mma_fits(TensorType type, const LinearScan *s);

/* Elements of scratch memory of a pass. */
int64_t causal_mma_scratch(TensorType type, const LinearScan *s, bool backward);

/* As causal_linear_attention_forward_cuda and causal_linear_attention_backward_cuda. */
void causal_mma_forward(TensorType type, Real *out, Real *den, Real *final_state, Real *scratch,
                        const LinearScan *s);
void causal_mma_backward(TensorType type, const LinearScanGradient &d, const Real *dout,
                         const Real *dfinal_state, const Real *out, const Real *den, Real *scratch,
                         const LinearScan *s);

#endif
