/* More losses for classification. */
#ifndef TAPEGRAD_LOSSES_H
#define TAPEGRAD_LOSSES_H

#include "ops/ops.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* Each returns a scalar of dtype Real, in nats. weights, 0 or more, are those of op_cross_entropy,
 * or NULL for all 1: where one is 0, logits and targets are ignored, even if they are NaN. Raise
 * when weights require a gradient, which they do not get. */

/* out = -sum_r w_r sum_c targets_rc ln softmax(logits_r)_c / sum_r w_r, over rows r of logits and
 * targets [..., C]: targets are probabilities, such as a teacher's softmax or a mixture of labels.
 * weights [...]. Both get gradients: make the targets without recording if they are constants.
 * Whether a row of targets is 0 or more with the sum 1 is not checked. */
Tensor *op_soft_cross_entropy(Tape *tape, Tensor *logits, Tensor *targets, Tensor *weights);

/* out = op_soft_cross_entropy with (1 - smoothing) [c = target_r] + smoothing / C as the target's
 * probabilities: label smoothing (Szegedy et al. 2016, section 7). logits [..., C], targets int32
 * [...], in [0, C), weights [...]. With smoothing 0 this is op_cross_entropy. Raises unless
 * 0 <= smoothing <= 1. */
Tensor *op_smoothed_cross_entropy(Tape *tape, Tensor *logits, Tensor *targets, double smoothing,
                                  Tensor *weights);

typedef struct BinaryCrossEntropyOptions {
    Tensor *weights;          /* NULL: all 1; of logits' shape */
    Tensor *positive_weights; /* NULL: all 1; Real, 0 or more, broadcast to logits' shape, such as
                               * [C], one per class: p above 1 counts positive targets more */
} BinaryCrossEntropyOptions;

/* out = -sum_i w_i (p_i t_i ln sigmoid(x_i) + (1 - t_i) ln sigmoid(-x_i)) / sum_i w_i, over
 * the elements of logits x and targets t, probabilities in [0, 1], which are not checked: yes or no
 * questions, several of which may be answered yes. Shapes of logits and targets are equal. Both get
 * gradients. */
Tensor *op_binary_cross_entropy(Tape *tape, Tensor *logits, Tensor *targets,
                                BinaryCrossEntropyOptions options);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
