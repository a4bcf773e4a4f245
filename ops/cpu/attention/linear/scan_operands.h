/* The operands of a scan of linear attention over packed rows: see scan.h. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_OPERANDS_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_OPERANDS_CPU_H

#include "ops/cpu/attention/linear/prefetch.h"

/* Packed rows [count, columns] and one more column, last [count], or NULL: v~ = [v, 1]. As a state:
 * a matrix and one more column or row: S~ = [S, z]. Stored separately: as a column of the matrix it
 * would be padded to a whole vector. */
typedef struct Matrix {
    Real *data, *last;
    int64_t columns;
} Matrix;

ALWAYS_INLINE Matrix without_last(Matrix m)
{
    m.last = NULL;
    return m;
}

/* How a chunk is scanned: one row after the other, or by matrix products. */
typedef enum Method { BY_POSITION, BY_PRODUCTS } Method;

/* With a decay T is multiplied at some rows (decay.h), which divides the chunk into parts. */
typedef struct DecayPart {
    int64_t end;       /* its rows end before this one */
    Real enter, leave; /* factors of T before and after its rows; mostly 1 */
} DecayPart;

/* How the rows of a chunk are scanned. */
typedef struct Scan {
    int64_t count; /* rows; they are allocated up to a multiple of UNIT */
    Method method;
    bool strict;
    bool zero_before, state_after; /* T is known to be 0 before them; T is needed after them */
    Matrix result;                 /* the memory of o */
    Real *workspace;               /* scan_workspace elements */
    const DecayPart *parts;        /* of the rows with a decay, or NULL */
    const DecayPart *end_part;
} Scan;

#endif
