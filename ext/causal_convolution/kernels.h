/* The arguments of causal_convolution's kernels. */
#ifndef TAPEGRAD_OPS_CONVOLUTION_CAUSAL_CONVOLUTION_H
#define TAPEGRAD_OPS_CONVOLUTION_CAUSAL_CONVOLUTION_H

#include "tensor/kernel.h"

typedef struct ConvolvedSequences {
    int64_t R, C, K; /* rows of x, all positions of all sequences; channels; taps */
    int64_t S, N;    /* sequences; rows per sequence, unless there are offsets */
    const int32_t *lengths, *offsets; /* [S], [S + 1], or NULL */
} ConvolvedSequences;

/* The rows of x that sequence s has: first, ..., end - 1. */
typedef struct Sequence {
    int64_t s, first, end;
} Sequence;

SHARED_FUNCTION Sequence sequence_at(const ConvolvedSequences *c, int64_t s)
{
    const int64_t first = c->offsets ? c->offsets[s] : s * c->N;
    const int64_t end =
        c->offsets ? c->offsets[s + 1] : first + (c->lengths ? c->lengths[s] : c->N);
    const Sequence sequence = { s, first, end };
    return sequence;
}

/* The sequence of a row; rows from its end on are padding. */
SHARED_FUNCTION Sequence sequence_of_row(const ConvolvedSequences *c, int64_t row)
{
    if (!c->offsets)
        return sequence_at(c, row / c->N);
    int64_t s = 0, end = c->S; /* offsets[s] <= row < offsets[end] */
    while (end - s > 1) {
        const int64_t middle = s + (end - s) / 2;
        if (c->offsets[middle] <= row)
            s = middle;
        else
            end = middle;
    }
    return sequence_at(c, s);
}

#endif
