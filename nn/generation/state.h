/* What a transformer remembers of its sequences while it generates, as the files of nn/ see it. */
#ifndef TAPEGRAD_NN_GENERATION_STATE_H
#define TAPEGRAD_NN_GENERATION_STATE_H

#include "nn/internal.h"
#include "nn/generation/step.h"

struct TransformerState {
    Device *device;
    Transformer transformer;
    TransformerStep step;    /* its layers' and counts' places are in memory, */
    Block *memory, *scratch; /* and its scratch is this */
    int64_t scratch_count;
    Real *data; /* all that the layers remember, data_count numbers in one piece: */
    int64_t data_count, layer_count; /* layer by layer, so many each */
    Tensor out, positions;           /* what the functions return; in memory too */
    int32_t *counts; /* [2, B]: a copy of step.counts, which state_counts keeps right; and room */
    bool recorded;   /* replays may have changed the counts since */
};

/* The positions that each sequence has had, [B] on the host, read back from the device where the host
 * does not know them. NULL while a step is being recorded: each replay may find others. */
const int32_t *state_counts(TransformerState *state);

/* To be called where a step that is being recorded changes the counts. */
void state_counts_recorded(TransformerState *state);

/* Other counts, given in host memory of [B] that is written to. */
void state_write_counts(TransformerState *state, int32_t *counts);

/* Scratch memory for a step: more is taken where the number of threads has grown. */
void state_need_scratch(TransformerState *state);

/* Numbers that a sequence takes in a layer's sums, or in its keys and again in its values. */
int64_t state_sequence_count(const TransformerStep *step);

#endif
