/* The generation state: every layer's recurrent state or KV cache, counts and results. */
#ifndef TAPEGRAD_NN_GENERATION_STATE_H
#define TAPEGRAD_NN_GENERATION_STATE_H

#include "nn/internal.h"
#include "nn/generation/step.h"

struct TransformerState {
    Device *device;
    Transformer transformer;
    TransformerStep step; /* its pointers lead into memory and scratch */
    Block *memory;        /* data, out, counts, positions */
    Block *scratch;       /* the step's workspace, scratch_count elements */
    int64_t scratch_count;
    Real *data;                      /* recurrent states or KV caches of all layers, contiguous */
    int64_t data_count, layer_count; /* elements of all layers, of one */
    Tensor out, positions;           /* returned by the functions; stored in memory */
    int32_t *counts;                 /* host [2, B]: a copy of step.counts; a buffer for prefill */
    bool recorded;                   /* replays may have changed step.counts since the copy */
};

/* Positions per sequence, [B] on the host, copied from the device if replays may have changed them.
 * NULL while a step is being recorded, because every replay finds other counts. */
const int32_t *state_counts(TransformerState *state);

/* Call this when a step that is being recorded changes the counts. */
void state_counts_recorded(TransformerState *state);

/* Sets the counts from counts [B] on the host, which it overwrites. */
void state_write_counts(TransformerState *state, int32_t *counts);

/* Grows the workspace to a step's need, which depends on the number of threads. */
void state_need_scratch(TransformerState *state);

/* Elements per sequence in a layer's sums, or in its keys and in its values each. */
int64_t state_sequence_count(const TransformerStep *step);

#endif
