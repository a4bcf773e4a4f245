/* Causal convolution: each channel of a sequence over time. */
#ifndef TAPEGRAD_CAUSAL_CONVOLUTION_H
#define TAPEGRAD_CAUSAL_CONVOLUTION_H

#include "nn/nn.h"
#include "ops/ops.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef struct CausalConvolutionOptions {
    Tensor *lengths; /* NULL: N each; int32 [B], in [0, N]: sequence b ends after lengths[b]
                      * positions */
    Tensor *offsets; /* NULL; int32 [S + 1], B = 1: S sequences are stored one after another, as in
                      * CausalLinearAttentionOptions. Excludes lengths. */
    Tensor *state;   /* NULL: zeros; [B, K - 1, C] (with offsets [S, K - 1, C]): the inputs of the
                      * K - 1 positions before these */
} CausalConvolutionOptions;

/* out_ic = bias_c + sum_k weight_ck x_{i+k-K+1},c: each channel of a sequence convolved over time
 * with its own K taps; the last tap is the present. x [B, N, C], weight [C, K], K from 2 on, bias
 * [C] or NULL; returns [B, N, C], 0 after a sequence's end. Unless final_state is NULL,
 * *final_state becomes the last K - 1 inputs of each sequence, Real: as state of the next part of
 * the sequences it continues them, down to one position per call. PyTorch's Conv1d with groups = C
 * has weight [C, 1, K], and x [B, C, N] padded by K - 1 zeros at the left. */
Tensor *op_causal_convolution(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias,
                              CausalConvolutionOptions options, Tensor **final_state);

typedef struct CausalConvolution {
    Tensor *weight, *bias; /* weight [channels, taps], bias [channels] or NULL */
} CausalConvolution;

/* INITIAL_DEFAULT of the config: uniform in [-1/sqrt(taps), 1/sqrt(taps)); INITIAL_XAVIER: in
 * +-scale sqrt(6 / (taps + taps)), as each input is used in taps outputs. taps is 2 or more. */
CausalConvolution nn_causal_convolution_with(Params *params, const char *name, int64_t channels,
                                             int64_t taps, LinearConfig config);
/* The same with a config of zeros. */
CausalConvolution nn_causal_convolution(Params *params, const char *name, int64_t channels,
                                        int64_t taps);
/* out = each channel of x convolved over time, + bias (op_causal_convolution): x [B, N, channels],
 * returns the same shape. */
Tensor *nn_causal_convolution_forward(Tape *tape, const CausalConvolution *convolution, Tensor *x,
                                      CausalConvolutionOptions options, Tensor **final_state);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
