/* For operations, layers and optimizers of one's own, in the library (ext/) or outside of it. */
#ifndef TAPEGRAD_EXTEND_H
#define TAPEGRAD_EXTEND_H

#include "nn/extend.h"
#include "ops/extend.h"
#include "optim/extend.h"
#include "tensor/extend.h"

#endif
