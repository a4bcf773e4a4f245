/* tapegrad: train small models in C. One header, one library. */
#ifndef TAPEGRAD_H
#define TAPEGRAD_H

#include "tensor/tensor.h"
#include "autograd/tape.h"
#include "ops/ops.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "distributed/distributed.h"

#endif
