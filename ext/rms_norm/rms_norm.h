/* Root mean square normalization, and rows of length 1. */
#ifndef TAPEGRAD_RMS_NORM_H
#define TAPEGRAD_RMS_NORM_H

#include "nn/nn.h"
#include "ops/ops.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* Both square x in Real: in float32, elements beyond about 1e19 give NaN. */

/* out_c = x_c / sqrt(sum_j x_j^2 / C + eps) weight_c, in each row of x [..., C]; weight [C], or
 * NULL: ones; returns [..., C]  (Zhang and Sennrich 2019). Models that store weight - 1 pass
 * op_add_scalar(tape, weight, 1). Raises unless eps > 0. */
Tensor *op_rms_norm(Tape *tape, Tensor *x, Tensor *weight, double eps);
/* out_c = x_c / sqrt(sum_j x_j^2 + eps), likewise: rows of length 1 but for eps. */
Tensor *op_l2_normalize(Tape *tape, Tensor *x, double eps);

typedef struct RmsNorm {
    Tensor *weight;       /* [width] */
    double eps;           /* 1e-6 */
    bool one_plus_weight; /* the factor is 1 + weight */
} RmsNorm;

/* Weight is initialized to ones; with one_plus, the form of Gemma and Qwen3-Next, to zeros. */
RmsNorm nn_rms_norm(Params *params, const char *name, int64_t width);
RmsNorm nn_rms_norm_one_plus(Params *params, const char *name, int64_t width);
/* out = x / sqrt(mean x^2 + eps) weight, or times 1 + weight, along the last axis (op_rms_norm):
 * x [..., width], returns the same shape. */
Tensor *nn_rms_norm_forward(Tape *tape, const RmsNorm *norm, Tensor *x);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
