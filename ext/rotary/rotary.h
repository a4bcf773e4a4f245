/* Rotary positions. */
#ifndef TAPEGRAD_ROTARY_H
#define TAPEGRAD_ROTARY_H

#include "nn/nn.h"
#include "ops/ops.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef struct RotaryOptions {
    int64_t dims;      /* D, even: the first dims elements of a head are rotated */
    int64_t heads;     /* all: the first heads are rotated, such as 2 H of a packed query */
    double base;       /* 10000 */
    bool halves;       /* false: pairs (2 i, 2 i + 1), as in the paper; true: (i, i + dims / 2), as
                        * in GPT-NeoX, Llama, Qwen */
    Tensor *positions; /* NULL: 0, ..., N - 1; int32 [N] or [B, N]: to decode, or when packed */
} RotaryOptions;

/* out = x with each pair i of a head's elements rotated by the angle p base^(-2 i / dims) of its
 * position p: x [B, N, H, D], queries or keys, whose products then depend on the difference of
 * their positions; returns x's shape  (Su et al. 2021, RoFormer, equation 34). Angles are computed
 * in double: positions of 10^6 and more keep their digits. */
Tensor *op_rotary(Tape *tape, Tensor *x, RotaryOptions options);

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
