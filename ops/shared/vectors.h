/* Vector types of GCC and clang, of the processor's vector width. */
#ifndef TAPEGRAD_OPS_SHARED_VECTORS_H
#define TAPEGRAD_OPS_SHARED_VECTORS_H

#include <string.h>

#include "tensor/tensor.h"

/* Register tiling: ROWS rows by two vectors of columns leave registers for the operands. */
#if defined(__AVX512F__)
enum { VECTOR_BYTES = 64, ROWS = 8 };
#elif defined(__AVX__)
enum { VECTOR_BYTES = 32, ROWS = 4 };
#else
enum { VECTOR_BYTES = 16, ROWS = 4 };
#endif
enum {
    LANES = VECTOR_BYTES / sizeof(Real),
    UNIT = ROWS > LANES ? ROWS : LANES, /* a multiple of both, to which rows are padded */
    LINE = 64 / sizeof(Real),           /* elements per cache line */
};

typedef Real Vector __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef Real UnalignedVector
    __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(sizeof(Real))));
#ifdef TAPEGRAD_DOUBLE
typedef int64_t Mask __attribute__((vector_size(VECTOR_BYTES), may_alias));
#else
typedef int32_t Mask __attribute__((vector_size(VECTOR_BYTES), may_alias));
#endif

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* By default clang splits 64-byte vectors, because AVX-512 may lower the clock frequency. */
#if defined(__clang__) && defined(__AVX512F__)
#define WHOLE_VECTORS __attribute__((min_vector_width(512)))
#else
#define WHOLE_VECTORS
#endif

/* The vector at an aligned address. */
ALWAYS_INLINE Vector *at_vector(Real *data)
{
    return (Vector *)(void *)data;
}

ALWAYS_INLINE Vector vector(const Real *data)
{
    return *(const Vector *)(const void *)data;
}

/* Load and store at any address. */
ALWAYS_INLINE Vector load(const Real *data)
{
    return *(const UnalignedVector *)(const void *)data;
}

ALWAYS_INLINE void store(Real *data, Vector value)
{
    *(UnalignedVector *)(void *)data = value;
}

/* mask ? x : y */
ALWAYS_INLINE Vector choose(Mask mask, Vector x, Vector y)
{
    return (Vector)((mask & (Mask)x) | (~mask & (Mask)y));
}

/* The sum of a vector's elements, by adding its upper half to its lower half, and so on. */
ALWAYS_INLINE Real vector_sum(Vector v)
{
    typedef Real Piece __attribute__((vector_size(16), may_alias));
    Piece pieces[VECTOR_BYTES / 16];
    memcpy(pieces, &v, sizeof v);
    for (int half = VECTOR_BYTES / 32; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            pieces[i] += pieces[i + half];
    Real sum = 0;
    for (int i = 0; i < 16 / (int)sizeof(Real); i++)
        sum += pieces[0][i];
    return sum;
}

#endif
