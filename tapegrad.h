/* tapegrad: train small models in C. One header, one library. */
#ifndef TAPEGRAD_H
#define TAPEGRAD_H

#include "tensor/tensor.h"
#include "autograd/tape.h"
#include "ops/ops.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "distributed/distributed.h"

/* Extensions; -DTAPEGRAD_NUCLEUS: the library without them */
#ifndef TAPEGRAD_NUCLEUS
#include "ext/delta/delta.h"
#include "ext/lsh/lsh.h"
#include "ext/muon/muon.h"
#include "ext/recurrent/recurrent.h"
#include "ext/schedule_free/schedule_free.h"
#endif

#endif
