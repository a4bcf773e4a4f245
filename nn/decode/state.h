/* The generation state: every layer's recurrent state or KV cache, counts and results. */
#ifndef TAPEGRAD_NN_DECODE_STATE_H
#define TAPEGRAD_NN_DECODE_STATE_H

#include "nn/internal.h"
#include "nn/decode/step.h"

struct TransformerState {
    Device *device;
    Transformer transformer;
    TransformerStep step; /* its pointers lead into memory */
    Tape *tape;           /* of plain steps; NULL on a device with an engine */
    Block *memory;        /* data, out, counts, positions */
    Block *weights;       /* 8-bit copies of the weights, or NULL */
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

/* The parallel form of x [B, N, width] after the state's positions. New recurrent states go to
 * sums_after; keys and values to the KV cache, where they do not count yet. lengths [B] is as in
 * nn_transformer_prefill; cached_lengths [B], for N = 1 and softmax attention: the positions in the
 * cache, this one included, which it attends to; or NULL. */
typedef struct ParallelForm {
    Tensor *x, *lengths, *cached_lengths;
    Tensor *sums_after; /* all layers' recurrent states; NULL for softmax attention */
} ParallelForm;
Tensor *state_run_layers(Tape *tape, const TransformerState *state, ParallelForm form);

/* Makes sums_after, which it frees, the state. */
void state_commit(Tape *tape, TransformerState *state, Tensor *sums_after);

#endif
