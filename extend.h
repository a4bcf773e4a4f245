/* For operations, layers and optimizers of one's own in the library's tree, as those of ext/ are.
 * An installed library, and the two files, do not offer it. */
#ifndef TAPEGRAD_EXTEND_H
#define TAPEGRAD_EXTEND_H

#include "nn/extend.h"
#include "ops/extend.h"
#include "optim/extend.h"
#include "tensor/extend.h"

#endif
