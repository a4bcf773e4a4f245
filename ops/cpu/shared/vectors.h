/* Vector types of GCC and clang, of the processor's vector width. */
#ifndef TAPEGRAD_OPS_SHARED_VECTORS_H
#define TAPEGRAD_OPS_SHARED_VECTORS_H

#include <math.h>
#include <string.h>

#include "ops/cpu/shared/storage.h"

#ifdef __AVX__
#include <immintrin.h>
#endif

/* Decays and softmax weights below SMALLEST_FACTOR are replaced by 0. It is 2^16 times the smallest
 * normal number, so that products of such factors with numbers of common sizes are not subnormal:
 * an instruction with a subnormal operand or result takes over 100 cycles. */
#ifdef TAPEGRAD_DOUBLE
static const Real SMALLEST_FACTOR = 0x1p-1006;
#else
static const Real SMALLEST_FACTOR = 0x1p-110f;
#endif
static inline Real flush_factor(Real factor)
{
    return factor < SMALLEST_FACTOR ? 0 : factor;
}

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
    LINE_BYTES = 64,                    /* of a cache line */
    LINE = LINE_BYTES / sizeof(Real),   /* Reals per cache line */
};

typedef Real Vector __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef Real UnalignedVector
    __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(sizeof(Real))));
#ifdef TAPEGRAD_DOUBLE
typedef int64_t Mask __attribute__((vector_size(VECTOR_BYTES), may_alias));
#else
typedef int32_t Mask __attribute__((vector_size(VECTOR_BYTES), may_alias));
#endif

/* LANES elements of bf16, at any address, and as float or its bits. */
typedef uint16_t UnalignedBfloat16s
    __attribute__((vector_size(2 * LANES), may_alias, aligned(sizeof(Bfloat16))));
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef uint32_t FloatBits __attribute__((vector_size(4 * LANES)));

/* Before a loop that gcc shall unroll, since its counter selects a register. clang obeys before it
 * inlines, while the number of rows is not known, and then no longer: it unrolls better unasked. */
#ifdef __clang__
#define UNROLL(n)
#else
#define UNROLL(n) PRAGMA(GCC unroll n)
#endif

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

/* A vector whose elements are x: x - 0 is x, for -0 too. */
ALWAYS_INLINE Vector broadcast(Real x)
{
    return x - (Vector){ 0 };
}

/* a b + sum, rounded once where the processor has the instruction. Left to the compiler, some tiles
 * of a product are contracted and others are not: a row's bits then depend on its neighbors. */
ALWAYS_INLINE Vector multiply_add(Vector a, Vector b, Vector sum)
{
#if defined(__AVX512F__) && defined(TAPEGRAD_DOUBLE)
    return (Vector)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)sum);
#elif defined(__AVX512F__)
    return (Vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__FMA__) && defined(TAPEGRAD_DOUBLE)
    return (Vector)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)sum);
#elif defined(__FMA__)
    return (Vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#else
    return a * b + sum;
#endif
}

/* The same of one element. */
ALWAYS_INLINE Real multiply_add_element(Real a, Real b, Real sum)
{
#if defined(__FP_FAST_FMA) && defined(TAPEGRAD_DOUBLE)
    return fma(a, b, sum);
#elif defined(__FP_FAST_FMAF)
    return fmaf(a, b, sum);
#else
    return a * b + sum;
#endif
}

/* The same functions as real_of_bf16 and bf16_of, of each element; denormal numbers may become
 * 0. */
ALWAYS_INLINE Vector vector_of_bf16(UnalignedBfloat16s upper)
{
#if defined(__AVX512F__) && !defined(TAPEGRAD_DOUBLE) /* gcc 12 takes five instructions */
    return (Vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)upper), 16);
#else
    return __builtin_convertvector((Floats)(__builtin_convertvector(upper, FloatBits) << 16),
                                   Vector);
#endif
}

ALWAYS_INLINE UnalignedBfloat16s bf16_of_vector(Vector value)
{
#if defined(__AVX512BF16__) && !defined(TAPEGRAD_DOUBLE)
    return (UnalignedBfloat16s)_mm512_cvtneps_pbh((__m512)value); /* 0 for denormal numbers */
#else
    const Floats x = __builtin_convertvector(value, Floats);
    const FloatBits bits = (FloatBits)x, nan = (FloatBits)(x != x);
    const FloatBits rounded = bits + 0x7fffu + (bits >> 16 & 1);
    return __builtin_convertvector(((nan & (bits | 0x400000u)) | (~nan & rounded)) >> 16,
                                   UnalignedBfloat16s);
#endif
}

/* Load and store of x[i], x[i + 1], ... of dtype T, at any address. */
ALWAYS_INLINE Vector load_vector(int T, const Real *x, int64_t i)
{
    const void *data = elements_at(T, x, i);
    return T == TENSOR_BF16 ? vector_of_bf16(*(const UnalignedBfloat16s *)data)
                            : *(const UnalignedVector *)data;
}

ALWAYS_INLINE void store_vector(int T, Real *x, int64_t i, Vector value)
{
    void *data = elements_at(T, x, i);
    if (T == TENSOR_BF16)
        *(UnalignedBfloat16s *)data = bf16_of_vector(value);
    else
        *(UnalignedVector *)data = value;
}

/* mask ? x : y */
ALWAYS_INLINE Vector choose(Mask mask, Vector x, Vector y)
{
    return (Vector)((mask & (Mask)x) | (~mask & (Mask)y));
}

#define INTERLEAVE(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#if defined(__AVX512F__) && !defined(TAPEGRAD_DOUBLE)
#define LOWER(x, y) INTERLEAVE(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define UPPER(x, y) INTERLEAVE(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif defined(__AVX512F__) || (defined(__AVX__) && !defined(TAPEGRAD_DOUBLE))
#define LOWER(x, y) INTERLEAVE(x, y, 0, 8, 1, 9, 2, 10, 3, 11)
#define UPPER(x, y) INTERLEAVE(x, y, 4, 12, 5, 13, 6, 14, 7, 15)
#elif defined(__AVX__) || !defined(TAPEGRAD_DOUBLE)
#define LOWER(x, y) INTERLEAVE(x, y, 0, 4, 1, 5)
#define UPPER(x, y) INTERLEAVE(x, y, 2, 6, 3, 7)
#else
#define LOWER(x, y) INTERLEAVE(x, y, 0, 2)
#define UPPER(x, y) INTERLEAVE(x, y, 1, 3)
#endif

/* Transposes LANES rows of LANES elements: interleaving row i with row i + LANES / 2 moves the top
 * bit of the row's index to the bottom of the column's; LANES = 2^s, s times. */
ALWAYS_INLINE void transpose_vectors(Vector *x)
{
    UNROLL(4)
    for (int s = 1; s < LANES; s *= 2) {
        Vector y[LANES];
        UNROLL(16)
        for (int i = 0; i < LANES / 2; i++) {
            y[2 * i] = LOWER(x[i], x[i + LANES / 2]);
            y[2 * i + 1] = UPPER(x[i], x[i + LANES / 2]);
        }
        UNROLL(16)
        for (int i = 0; i < LANES; i++)
            x[i] = y[i];
    }
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

/* The sums of LANES vectors' elements, vector i's in lane i: as transpose_vectors, but the two
 * vectors of a step are added, which leaves half of them. */
ALWAYS_INLINE Vector vector_sums(Vector *x)
{
    UNROLL(4)
    for (int n = LANES / 2; n > 0; n /= 2) {
        UNROLL(16)
        for (int i = 0; i < n; i++)
            x[i] = LOWER(x[i], x[i + n]) + UPPER(x[i], x[i + n]);
    }
    return x[0];
}

#endif
