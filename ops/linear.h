/* A linear layer in one pass, where a device's product can do all of it. */
#ifndef TAPEGRAD_OPS_LINEAR_H
#define TAPEGRAD_OPS_LINEAR_H

#include "ops/ops.h"

/* out = activation(y), y = x weight^T + bias; y may be NULL. */
typedef struct LinearPass {
    Real *out, *y;                 /* [R, O] */
    const Real *x, *weight, *bias; /* [R, I], [O, I], [O] */
    int64_t R, I, O;
    Activation activation;
    Precision precision;
    TensorType type; /* of all matrices, and here of the bias too */
    const char *operation;
} LinearPass;

#endif
