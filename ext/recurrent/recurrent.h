/* Recurrent layers: LSTM and GRU. */
#ifndef TAPEGRAD_RECURRENT_H
#define TAPEGRAD_RECURRENT_H

#include "nn/nn.h"
#include "ops/ops.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* With the names and layouts of PyTorch's LSTM and GRU; G = 4 or 3 gates of H elements each. */
typedef struct RecurrentWeights {
    Tensor *weight_ih, *weight_hh; /* [G H, I], [G H, H] */
    Tensor *bias_ih, *bias_hh;     /* [G H], or NULL: zeros */
} RecurrentWeights;

typedef struct LstmOptions {
    Tensor *lengths;       /* NULL: N each; int32 [B], in [0, N]: sequence b ends after lengths[b]
                            * positions; x must be finite after them */
    Tensor *hidden, *cell; /* NULL: zeros; [B, H]: the state before the first step */
    bool reverse;          /* false: position 0 comes first; true: each sequence's last one */
} LstmOptions;

/* A layer of long short-term memory in one direction (Hochreiter and Schmidhuber 1997; forget gate:
 * Gers, Schmidhuber and Cummins 2000):
 *   [i, f, c~, o] = W_ih x_t + b_ih + W_hh h_{t-1} + b_hh
 *   c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(c~)    h_t = sigmoid(o) tanh(c_t)
 * x [B, N, I]; returns all h_t, [B, N, H], in x's dtype, 0 after a sequence's end. Unless they are
 * NULL, *final_hidden and *final_cell become h and c after each sequence's last step, [B, H], Real:
 * as options.hidden and cell of the next part of the sequences they continue them. O(N) time; saves
 * 6 H values per position. Raises if a length is outside [0, N]. */
Tensor *op_lstm(Tape *tape, Tensor *x, RecurrentWeights weights, LstmOptions options,
                Tensor **final_hidden, Tensor **final_cell);

typedef struct GruOptions {
    Tensor *lengths, *hidden; /* as LstmOptions */
    bool reverse;
} GruOptions;

/* A layer of gated recurrent units (Cho et al. 2014) in one direction:
 *   r = sigmoid(W_ir x_t + b_ir + W_hr h_{t-1} + b_hr)    z = sigmoid(W_iz x_t + b_iz + ...)
 *   n = tanh(W_in x_t + b_in + r (W_hn h_{t-1} + b_hn))   h_t = (1 - z) n + z h_{t-1}
 * The order of the gates is r, z, n; the rest as op_lstm. Saves 5 H values per position. */
Tensor *op_gru(Tape *tape, Tensor *x, RecurrentWeights weights, GruOptions options,
               Tensor **final_hidden);

/* Stacked recurrent layers. */
typedef struct RecurrentConfig {
    int64_t input, hidden; /* no default: the width of x, and H, the width of the state */
    int64_t layers;        /* 0 means the default, 1 */
    bool bidirectional;    /* false; true: each layer also runs in the reverse direction, and the
                            * next one gets the outputs of both, 2 H */
    double dropout;        /* 0: the probability of dropout between layers */
    bool no_bias;          /* false */
} RecurrentConfig;

/* Layer l in direction d, 1: reverse; names as in PyTorch, where a state dictionary has them:
 * weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, weight_ih_l0_reverse, ..., weight_ih_l1. */
typedef struct Recurrent {
    int64_t layers, directions, hidden;
    Dropout dropout;
    RecurrentWeights weights[NN_MAX_LAYERS][2];
} Recurrent;

typedef struct Lstm {
    Recurrent stack;
} Lstm;

/* The state of all layers and directions, Real: [layers directions, B, H], layer by layer. NULL: a
 * state of zeros. */
typedef struct LstmState {
    Tensor *hidden, *cell;
} LstmState;

/* All weights are initialized uniformly in [-1/sqrt(H), 1/sqrt(H)). */
Lstm nn_lstm(Params *params, const char *name, RecurrentConfig config);
/* x = op_lstm(x) for every layer, in both directions op_concat of two: x [B, N, input], returns
 * [B, N, H] or, bidirectional, [B, N, 2 H]. lengths int32 [B], in [0, N], or NULL: as op_lstm.
 * state is NULL, or begins the sequences and becomes their final state. In one direction a sequence
 * may be split anywhere, down to one position per call: pass on the state. */
Tensor *nn_lstm_forward(Tape *tape, const Lstm *lstm, Tensor *x, Tensor *lengths, LstmState *state);

typedef struct Gru {
    Recurrent stack;
} Gru;

/* The same with op_gru. Unless hidden is NULL, *hidden begins the sequences and becomes their final
 * state; a *hidden of NULL is zeros. */
Gru nn_gru(Params *params, const char *name, RecurrentConfig config);
Tensor *nn_gru_forward(Tape *tape, const Gru *gru, Tensor *x, Tensor *lengths, Tensor **hidden);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
