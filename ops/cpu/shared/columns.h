/* Sums over blocks of rows, for kernels of the CPU backend. */
#ifndef TAPEGRAD_OPS_CPU_SHARED_COLUMNS_H
#define TAPEGRAD_OPS_CPU_SHARED_COLUMNS_H

#include "ops/shared/columns.h"

/* dw [C] <- the sum over the blocks of partial [blocks, C], in order. dw.data may be NULL. */
void add_blocks(Gradient dw, const Real *partial, int64_t blocks, int64_t C);

#endif
