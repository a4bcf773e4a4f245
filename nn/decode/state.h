/* The generation state: every layer's recurrent state or KV cache, counts and results. */
#ifndef TAPEGRAD_NN_DECODE_STATE_H
#define TAPEGRAD_NN_DECODE_STATE_H

#include "nn/internal.h"
#include "nn/decode/step.h"
#include "tensor/storage.h"

struct TransformerState {
    Device *device;
    Transformer transformer;
    TransformerStep step; /* its pointers lead into memory and scratch */
    Block *memory;        /* data, out, counts, positions */
    Block *weights;       /* 8-bit copies of the weights, or NULL */
    Block *scratch;       /* the step's workspace, scratch_count elements */
    int64_t scratch_count;
    Real *data; /* recurrent states or KV caches of all layers, contiguous, of step.cache_type */
    int64_t data_count, layer_count; /* elements of all layers, of one */
    Tensor out, positions;           /* returned by the functions; stored in memory */
    int32_t *counts; /* host [2, B]: a copy of step.counts; a buffer for state_write_counts */
    bool recorded;   /* a recorded step changes step.counts: replays may have done so since */
};

/* Positions per sequence, [B] on the host, copied from the device if replays may have changed them.
 * NULL while a step is being recorded, because every replay finds other counts. */
const int32_t *state_counts(TransformerState *state);

/* Bytes of data. */
size_t state_bytes(const TransformerState *state);

/* Sets the counts from counts [B] on the host, which it overwrites. */
void state_write_counts(TransformerState *state, int32_t *counts);

/* Grows the workspace to a step's need, which depends on the number of threads. Raises when memory
 * is exhausted. */
void state_need_scratch(TransformerState *state);

#endif
