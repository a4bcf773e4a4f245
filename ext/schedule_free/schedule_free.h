/* Schedule-free AdamW, which averages its weights in place of a schedule. */
#ifndef TAPEGRAD_SCHEDULE_FREE_H
#define TAPEGRAD_SCHEDULE_FREE_H

#include "optim/optim.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* Schedule-free AdamW (Defazio et al. 2024), which averages instead of lowering the
 * learning rate, so that the number of steps need not be known:
 *   y = (1 - beta1) z + beta1 x, the weights in training, where g is computed
 *   z = z - lr (g / (sqrt(v_hat) + eps) + weight_decay y)
 *   c = lr^2 / sum of the lr^2 so far,   x = (1 - c) x + c z, the weights in evaluation
 * z and x are at first the weights. The schedule is constant or optim_warm_up. Weights that a
 * program writes after the first step are overwritten by the next one. */
Optimizer *optim_schedule_free_adamw(Params *params, AdamConfig config);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
