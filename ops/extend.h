/* What operations of one's own share: the table of kernels; and, for definitions in C, checks,
 * casts, rows, axes, products, attention. */
#ifndef TAPEGRAD_OPS_EXTEND_H
#define TAPEGRAD_OPS_EXTEND_H

#include "ops/kernels.h"

#ifndef __cplusplus /* CUDA's sources have functions of their own */
#include "ops/attention/linear_rows.h"
#include "ops/products/product.h"
#include "ops/shared/axis.h"
#include "ops/shared/columns.h"
#include "ops/shared/indices.h"
#include "ops/shared/internal.h"
#include "ops/shared/rows.h"
#endif

#endif
