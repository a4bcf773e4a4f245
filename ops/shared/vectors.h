/* Vectors as the compilers know them (GCC's and clang's vector types), of the processor's width. */
#ifndef TAPEGRAD_OPS_SHARED_VECTORS_H
#define TAPEGRAD_OPS_SHARED_VECTORS_H

#include "tensor/tensor.h"

/* A tile of ROWS rows and two vectors of columns leaves registers for the operands. */
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
    LINE = 64 / sizeof(Real),           /* numbers in a cache line */
};

typedef Real Vector __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef Real UnalignedVector
    __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(sizeof(Real))));

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* clang halves vectors of 64 bytes otherwise, for fear of a slower clock. */
#if defined(__clang__) && defined(__AVX512F__)
#define WHOLE_VECTORS __attribute__((min_vector_width(512)))
#else
#define WHOLE_VECTORS
#endif

#endif
