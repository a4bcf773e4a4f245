/* Vector types of GCC and clang, of the processor's vector width. */
#ifndef TAPEGRAD_OPS_SHARED_VECTORS_H
#define TAPEGRAD_OPS_SHARED_VECTORS_H

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

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* By default clang splits 64-byte vectors, because AVX-512 may lower the clock frequency. */
#if defined(__clang__) && defined(__AVX512F__)
#define WHOLE_VECTORS __attribute__((min_vector_width(512)))
#else
#define WHOLE_VECTORS
#endif

#endif
