/* The numbers of an optimiser's step that change from step to step. They lie in the device's memory:
 * a recorded step is replayed with the same arguments, and finds the new numbers there. */
#ifndef TAPEGRAD_OPTIM_SCALARS_H
#define TAPEGRAD_OPTIM_SCALARS_H

#include "tensor/tensor.h"

typedef struct StepScalars {
    Real keep;      /* the share of a weight that decoupled weight decay leaves */
    Real step;      /* the learning rate, with what m is divided by */
    Real scale;     /* adam: what sqrt(v) is multiplied by */
    bool rectified; /* radam: whether v counts */
    void *bf16;     /* the copy of the weights in bf16, which the step writes too; or NULL */
} StepScalars;

#endif
