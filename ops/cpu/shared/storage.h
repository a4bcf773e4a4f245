/* Elements of tensors of dtype Real or bf16 on the CPU. Kernels read and write them with the
 * functions below and compute in Real.
 *
 * T is the dtype, a TensorType. BY_STORAGE(type, T, statement) runs the statement with T as a
 * constant, and functions that are always inlined pass it on: the compiler then makes one loop per
 * dtype from one source, as it does from the template of a CUDA kernel:
 *
 *     BY_STORAGE(type, T, EACH(i, n) store(T, out, i, exp(load(T, x, i))));
 *
 * Tensors of either dtype are passed as Real pointers; only these functions access their
 * elements. */
#ifndef TAPEGRAD_OPS_CPU_STORAGE_H
#define TAPEGRAD_OPS_CPU_STORAGE_H

#include "ops/shared/math.h"
#include "tensor/internal.h"

#define BY_STORAGE(type, T, ...)                                                                   \
    do {                                                                                           \
        if ((type) == TENSOR_BF16) {                                                               \
            enum { T = TENSOR_BF16 };                                                              \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            enum { T = TENSOR_REAL };                                                              \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

typedef uint16_t __attribute__((may_alias)) Bfloat16;

ALWAYS_INLINE size_t element_bytes(int T)
{
    return T == TENSOR_BF16 ? sizeof(Bfloat16) : sizeof(Real);
}

/* The address of x[i]. */
ALWAYS_INLINE Real *elements_at(int T, const Real *x, int64_t i)
{
    return (Real *)((char *)x + i * (int64_t)element_bytes(T));
}

ALWAYS_INLINE Real load(int T, const Real *x, int64_t i)
{
    return T == TENSOR_BF16 ? real_of_bf16(((const Bfloat16 *)x)[i]) : x[i];
}

ALWAYS_INLINE void store(int T, Real *x, int64_t i, Real value)
{
    if (T == TENSOR_BF16)
        ((Bfloat16 *)x)[i] = bf16_of(value);
    else
        x[i] = value;
}

/* to [n] = from [n], of these dtypes. */
static inline void convert_elements(int to_type, Real *to, int from_type, const Real *from,
                                    int64_t n)
{
    BY_STORAGE(to_type, A,
               BY_STORAGE(from_type, B,
                          for (int64_t i = 0; i < n; i++) store(A, to, i, load(B, from, i))));
}

/* Contributes to element i of a gradient: adds to dx[i] if accumulate, else stores. The old value,
 * which may be uninitialized if not accumulate, is masked by bits and not selected: gcc 12 does not
 * vectorize a selection by a loop-invariant condition. */
ALWAYS_INLINE void contribute(int T, Real *dx, int64_t i, bool accumulate, Real value)
{
    if (T == TENSOR_BF16) {
        Bfloat16 *d = (Bfloat16 *)dx + i;
        *d = bf16_of(real_of_bf16((uint16_t)(*d & -(unsigned)accumulate)) + value);
    } else {
        dx[i] = real_from_bits(real_bits(dx[i]) & -(RealBits)accumulate) + value;
    }
}

#endif
