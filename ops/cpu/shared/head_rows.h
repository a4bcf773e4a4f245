/* The rows and the state of one head of a sequence, packed and unpacked. */
#ifndef TAPEGRAD_OPS_SHARED_HEAD_ROWS_CPU_H
#define TAPEGRAD_OPS_SHARED_HEAD_ROWS_CPU_H

#include "ops/cpu/shared/packing.h"

/* `count` positions from `first` on, of those of all sequences, of head h. Packed rows are
 * `padded`: those after the first `count` are 0. */
typedef struct HeadRows {
    int64_t h, first, count, padded;
} HeadRows;

/* to [padded, columns], the columns padded to whole vectors, = the rows of a tensor that has
 * `columns` elements per head and `stride` per position */
static inline void pack_head_rows(Real *to, HeadRows at, int type, const Real *data, int64_t stride,
                                  int64_t columns)
{
    const int64_t padded = round_up(columns, UNIT), index = at.first * stride + at.h * columns;
    const Rows rows = { type, elements_at(type, data, index), stride, at.count, columns };
    pack(to, &rows, padded, 1, AHEAD);
    memset(to + at.count * padded, 0, (size_t)((at.padded - at.count) * padded) * sizeof *to);
}

/* The rows of a result or gradient <- packed ones; nothing if it has no data */
static inline void unpack_head_rows(Gradient to, HeadRows at, int type, const Real *rows,
                                    int64_t stride, int64_t columns)
{
    if (!to.data)
        return;
    to.data = elements_at(type, to.data, at.first * stride + at.h * columns);
    const GradientRows rows_of = { type, to, stride, at.count, columns };
    unpack(&rows_of, rows, round_up(columns, UNIT), 1, AHEAD);
}

/* to [D, M], padded, or its transpose [M, D] = state [D, M]; NULL: 0 */
static inline void pack_state(Real *to, const Real *state, int64_t D, int64_t M, bool transposed)
{
    const int64_t padded_D = round_up(D, UNIT), padded_M = round_up(M, UNIT);
    memset(to, 0, (size_t)(padded_D * padded_M) * sizeof *to);
    for (int64_t k = 0; state && k < D * M; k++)
        to[transposed ? k % M * padded_D + k / M : k / M * padded_M + k % M] = state[k];
}

#endif
