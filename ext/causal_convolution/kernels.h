/* The kernels of op_causal_convolution. */
#ifndef TAPEGRAD_CAUSAL_CONVOLUTION_KERNELS_H
#define TAPEGRAD_CAUSAL_CONVOLUTION_KERNELS_H

#include "extend.h"

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

/* Where the states [S, K - 1, C] hold the row in place of row i of x, i < q.first. */
SHARED_FUNCTION int64_t state_offset(const ConvolvedSequences *c, Sequence q, int64_t i)
{
    return (q.s * (c->K - 1) + i - q.first + c->K - 1) * c->C;
}

typedef struct CausalConvolutionKernels {
    /* out [R, C] = x convolved over time; final_state [S, K - 1, C], or NULL. weight [C, K], bias
     * [C] or NULL, and both states (state may be NULL) are Real. */
    void (*forward)(Real *out, Real *final_state, const Real *x, const Real *weight,
                    const Real *bias, const Real *state, ConvolvedSequences c);
    /* dx, dstate, which is Real, <- the gradients, from dout and dfinal_state or NULL */
    void (*backward_x)(Gradient dx, Gradient dstate, const Real *dout, const Real *dfinal_state,
                       const Real *weight, ConvolvedSequences c);
    /* dweight, dbias, Real, <- the gradients */
    void (*backward_weight)(Gradient dweight, Gradient dbias, const Real *dout, const Real *x,
                            const Real *state, ConvolvedSequences c);
} CausalConvolutionKernels;
extern const CausalConvolutionKernels causal_convolution_plain, causal_convolution_cpu,
    causal_convolution_cpu_bf16, causal_convolution_cuda, causal_convolution_cuda_bf16;
C_FUNCTION const CausalConvolutionKernels *causal_convolution_kernels(const Tensor *x);

#endif
