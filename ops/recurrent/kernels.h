/* The kernels of this room. */
#ifndef TAPEGRAD_OPS_RECURRENT_KERNELS_H
#define TAPEGRAD_OPS_RECURRENT_KERNELS_H

#include "autograd/tape.h"
#include "tensor/kernel.h"

/* One pass of a layer in one direction over B sequences of N positions; H hidden units with G gates
 * each. All elements are Real. Step s of sequence b is position s, or, in the reverse direction,
 * lengths[b] - 1 - s. */
typedef struct Recurrence {
    int64_t B, N, G, H;
    bool reverse;
    const int32_t *lengths;        /* [B], or NULL: N each */
    const Real *weight;            /* W_hh [G H, H] */
    const Real *bias_ih, *bias_hh; /* [G H] */
    Real *gates;                   /* [B, N, G H]: x W_ih^T; then the gates; then dgates */
    Real *saved;                   /* [B, N, H]: LSTM: cells; GRU: m, then dm */
    Real *out;                     /* [B, N, H] */
    Real *hidden, *cell;           /* [B, H]: the initial state, then the final one */
    Real *workspace;

    /* Of the backward pass: */
    const Real *dout;         /* [B, N, H], or NULL */
    Real *dhidden, *dcell;    /* [B, H]: dL/dfinal, then dL/dinitial */
    const Real *previous;     /* [B, N, H]: h of the step before */
    const Real *initial_cell; /* [B, H], or NULL: zeros */

    const char *operation; /* for error messages of CUDA's products, and their precision */
    Precision precision;
} Recurrence;

/* The position of a step of sequence b; -1 if the sequence has ended. */
SHARED_FUNCTION int64_t position_of(const Recurrence *r, int64_t b, int64_t step)
{
    const int64_t length = r->lengths ? r->lengths[b] : r->N;
    return step >= length ? -1 : r->reverse ? length - 1 - step : step;
}

DEVICE_FUNCTION(void, lstm_forward, Recurrence r);
DEVICE_FUNCTION(void, lstm_backward, Recurrence r);
DEVICE_FUNCTION(void, gru_forward, Recurrence r);
DEVICE_FUNCTION(void, gru_backward, Recurrence r);
DEVICE_FUNCTION(void, gru_hidden_gates, Recurrence r);

/* previous [B, N, H]: h of the step before; 0 after a sequence's end. initial [B, H], or NULL */
DEVICE_FUNCTION(void, previous_hidden, Real *previous, const Real *initial, Recurrence r);

#endif
