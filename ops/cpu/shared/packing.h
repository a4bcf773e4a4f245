/* Rows of tensors, packed contiguously and unpacked.
 *
 * A head's rows have a stride of at least H D elements. The attention kernels pack them into
 * workspaces of Reals, padded with zeros to whole vectors, compute there and unpack the results, so
 * there is one path for all sizes and dtypes. Pointers to packed rows are aligned to vectors. */
#ifndef TAPEGRAD_OPS_SHARED_PACKING_CPU_H
#define TAPEGRAD_OPS_SHARED_PACKING_CPU_H

#include "ops/cpu/shared/storage.h"
#include "ops/cpu/shared/tiles.h"

/* Rows as the tensors store them: columns elements each, stride apart. */
typedef struct Rows {
    int type; /* a TensorType */
    const Real *data;
    int64_t stride, count, columns;
} Rows;

/* Such rows of a result or gradient, to which rows are contributed. */
typedef struct GradientRows {
    int type;
    Gradient gradient;
    int64_t stride, count, columns;
} GradientRows;

/* The hardware prefetcher misses widely strided rows: prefetch AHEAD rows ahead. */
enum { AHEAD = 16 };

ALWAYS_INLINE int64_t elements_per_line(int T)
{
    return LINE_BYTES / (int64_t)element_bytes(T);
}

/* to [padded] = factor * row, padded with zeros. */
ALWAYS_INLINE void pack_row(int T, Real *restrict to, const Real *restrict row, int64_t columns,
                            int64_t padded, Real factor)
{
    int64_t c = 0;
    for (; c + LANES <= columns; c += LANES)
        *at_vector(to + c) = factor * load_vector(T, row, c);
    for (; c < padded; c++)
        to[c] = c < columns ? factor * load(T, row, c) : 0;
}

/* As pack, where the compiler knows the columns: loops over few vectors cost more than the rows. */
ALWAYS_INLINE void pack_columns(int T, Real *restrict to, Rows rows, int64_t padded, Real factor,
                                int64_t ahead)
{
    const Real *restrict row = rows.data;
    for (int64_t i = 0; i < rows.count; i++, row = elements_at(T, row, rows.stride), to += padded) {
        for (int64_t c = 0; ahead && c < rows.columns; c += elements_per_line(T))
            __builtin_prefetch(elements_at(T, row, ahead * rows.stride + c), 0, 2);
        pack_row(T, to, row, rows.columns, padded, factor);
    }
}

ALWAYS_INLINE Rows with_columns(Rows rows, int64_t columns)
{
    rows.columns = columns;
    return rows;
}

ALWAYS_INLINE void pack_by_columns(int T, Real *restrict to, Rows rows, int64_t padded, Real factor,
                                   int64_t ahead)
{
    if (rows.columns == 16 && padded == 16)
        pack_columns(T, to, with_columns(rows, 16), 16, factor, ahead);
    else if (rows.columns == 32 && padded == 32)
        pack_columns(T, to, with_columns(rows, 32), 32, factor, ahead);
    else if (rows.columns == 64 && padded == 64)
        pack_columns(T, to, with_columns(rows, 64), 64, factor, ahead);
    else
        pack_columns(T, to, rows, padded, factor, ahead);
}

/* to [count, padded] = factor * rows, padded with zeros; ahead: rows to prefetch ahead, or 0. */
WHOLE_VECTORS static inline void pack(Real *restrict to, const Rows *rows, int64_t padded,
                                      Real factor, int64_t ahead)
{
    BY_STORAGE(rows->type, T, pack_by_columns(T, to, *rows, padded, factor, ahead));
}

/* Zeroes the rows after the first count up to a multiple of ROWS. */
static inline void zero_missing(Real *rows, int64_t count, int64_t padded)
{
    const int64_t missing = round_up(count, ROWS) - count;
    memset(rows + count * padded, 0, (size_t)(missing * padded) * sizeof *rows);
}

/* The same as pack, and zeroes the rows up to a multiple of ROWS. */
static inline void pack_tile(Real *restrict to, const Rows *rows, int64_t padded, Real factor)
{
    pack(to, rows, padded, factor, AHEAD);
    zero_missing(to, rows->count, padded);
}

/* to [columns, padded] = the transpose of from [count, stride], padded with zeros. */
static inline void transpose(Real *restrict to, const Real *restrict from, int64_t stride,
                             int64_t count, int64_t columns, int64_t padded)
{
    for (int64_t c = 0; c < columns; c++, to += padded) {
        for (int64_t i = 0; i < count; i++)
            to[i] = from[i * stride + c];
        for (int64_t i = count; i < padded; i++)
            to[i] = 0;
    }
}

/* As unpack, where the compiler knows the columns. */
ALWAYS_INLINE void unpack_columns(int T, GradientRows to, const Real *restrict from, int64_t padded,
                                  Real factor, int64_t ahead)
{
    Real *restrict row = to.gradient.data;
    const bool accumulate = to.gradient.accumulate;
    for (int64_t i = 0; i < to.count; i++, row = elements_at(T, row, to.stride), from += padded) {
        int64_t c = 0;
        for (; ahead && c < to.columns; c += elements_per_line(T))
            __builtin_prefetch(elements_at(T, row, ahead * to.stride + c), 1);
        for (c = 0; c + LANES <= to.columns; c += LANES) {
            Vector contribution = factor * vector(from + c);
            if (accumulate)
                contribution += load_vector(T, row, c);
            store_vector(T, row, c, contribution);
        }
        for (; c < to.columns; c++)
            contribute(T, row, c, accumulate, factor * from[c]);
    }
}

ALWAYS_INLINE GradientRows with_gradient_columns(GradientRows rows, int64_t columns)
{
    rows.columns = columns;
    return rows;
}

ALWAYS_INLINE void unpack_by_columns(int T, GradientRows to, const Real *restrict from,
                                     int64_t padded, Real factor, int64_t ahead)
{
    if (to.columns == 16 && padded == 16)
        unpack_columns(T, with_gradient_columns(to, 16), from, 16, factor, ahead);
    else if (to.columns == 32 && padded == 32)
        unpack_columns(T, with_gradient_columns(to, 32), from, 32, factor, ahead);
    else if (to.columns == 64 && padded == 64)
        unpack_columns(T, with_gradient_columns(to, 64), from, 64, factor, ahead);
    else
        unpack_columns(T, to, from, padded, factor, ahead);
}

/* to [count, columns] <- factor * from [count, padded] */
WHOLE_VECTORS static inline void unpack(const GradientRows *to, const Real *restrict from,
                                        int64_t padded, Real factor, int64_t ahead)
{
    BY_STORAGE(to->type, T, unpack_by_columns(T, *to, from, padded, factor, ahead));
}

#endif
