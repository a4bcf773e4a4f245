/* For operations, layers, optimizers and kinds of attention of one's own: in ext/, or outside of
 * the tree with an installed library (examples/extensions/), in C with GNU extensions. make
 * one-file writes it as a third file beside the two.
 *
 * An installed library exports the functions within "visibility push(default)", whose names have
 * the prefix of their directory: device_ tensor_ shape_ error_ memory_ kernel_, tape_, op_, params_
 * nn_, optim_. Definitions of extensions call no others; backends in the tree may. tests/extend.txt
 * lists both. Macros, inline functions and types have no prefix (EACH, SUM, PRAGMA, relu, Product):
 * include this header in the files that need it, not in headers for programs.
 *
 * Structs and functions may change with each 0.Y: compile an extension again for the next one. */
#ifndef TAPEGRAD_EXTEND_H
#define TAPEGRAD_EXTEND_H

#include "autograd/extend.h"
#include "nn/extend.h"
#include "ops/extend.h"
#include "optim/extend.h"
#include "tensor/extend.h"

#endif
