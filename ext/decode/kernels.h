/* The engines of decode steps: a backend's kernels. */
#ifndef TAPEGRAD_DECODE_KERNELS_H
#define TAPEGRAD_DECODE_KERNELS_H

#include "ext/decode/state.h"

typedef struct DecodeKernels {
    /* out [B, width] = a decode step of x [B, width], which may be out: step.c. It advances the
     * layers' states, the counts and the positions. The result of a full sequence, which a step
     * finds only when it is replayed, is NaN. NULL: there is no engine, and operations compute the
     * step. */
    void (*step)(Real *out, const Real *x, const TransformerState *state);
    /* state->weights <- the weights as step reads them, of an engine that reads weights in bf16 and
     * in 8 bits; NULL: it reads them as they are. Raises when memory is exhausted. */
    void (*store_weights)(TransformerState *state, bool int8_weights);
} DecodeKernels;
extern const DecodeKernels decode_cpu, decode_cuda;
const DecodeKernels *decode_kernels(Device *device);

#endif
