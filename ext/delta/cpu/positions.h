/* The delta rule with a decay per key dimension: positions.c. type: of query, key, value, out and
 * their gradients. */
#ifndef TAPEGRAD_DELTA_POSITIONS_H
#define TAPEGRAD_DELTA_POSITIONS_H

#include "ext/delta/kernels.h"

void delta_positions_forward(TensorType type, Real *out, Real *u, Real *final_state,
                             const DeltaRule *rule);
void delta_positions_backward(TensorType type, DeltaRuleGradient d, const Real *dout,
                              const Real *dfinal_state, const Real *u, const DeltaRule *rule);

#endif
