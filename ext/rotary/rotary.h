/* Rotary positions of a kind of attention. */
#ifndef TAPEGRAD_ROTARY_H
#define TAPEGRAD_ROTARY_H

#include "nn/nn.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* A field left 0 means its default, the first value in its comment. */
typedef struct RotaryConfig {
    const AttentionKind *inner; /* NULL: causal linear attention, with its defaults */
    int64_t dims;               /* head_dim; even, at most head_dim: elements that are rotated */
    double base;                /* 10000 */
} RotaryConfig;

/* The inner kind of queries and keys whose first dims elements op_rotary rotates, in halves: before
 * its feature map, and inside of gates after their convolution. */
const AttentionKind *nn_rotary_attention(Params *params, RotaryConfig config);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
