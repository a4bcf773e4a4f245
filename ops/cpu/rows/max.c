/* argmax on the CPU, in Real and in bf16. */
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"
#include "ops/shared/internal.h"

enum { ARGMAX_CHUNK = 64 };

/* count <= ARGMAX_CHUNK adjacent maxima in vector lanes */
ALWAYS_INLINE void argmax_of_columns(int T, int32_t *index, const Real *x, int64_t size,
                                     int64_t inner, int64_t count)
{
    Real best[ARGMAX_CHUNK];
    for (int64_t i = 0; i < count; i++) {
        best[i] = load(T, x, i);
        index[i] = 0;
    }
    for (int64_t j = 1; j < size; j++)
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            const Real value = load(T, x, j * inner + i);
            const bool larger = !(value <= best[i]) & (best[i] == best[i]);
            index[i] = larger ? (int32_t)j : index[i];
            best[i] = larger ? value : best[i];
        }
}

/* The maximum, then the first element equal to it; a NaN at j counts as j - size, before all
 * others. Two passes whose elements do not depend on each other. */
ALWAYS_INLINE int32_t argmax_of_row(int T, const Real *x, int32_t size)
{
    Real max = -(Real)INFINITY;
    SUM(max, max)
    for (int32_t j = 0; j < size; j++)
        max = load(T, x, j) > max ? load(T, x, j) : max;
    int32_t first = size;
    SUM(min, first)
    for (int32_t j = 0; j < size; j++) {
        const Real value = load(T, x, j);
        const int32_t place = value != value ? j - size : value == max ? j : size;
        first = place < first ? place : first;
    }
    return first < 0 ? first + size : first;
}

static void argmax_as(TensorType type, int32_t *index, const Real *x, AxisView v)
{
    const int64_t outer = v.outer, size = v.size, inner = v.inner;
#pragma omp parallel for collapse(2) schedule(static)                                              \
    num_threads(device_threads_for(outer *size *inner, 0.7))
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i += ARGMAX_CHUNK)
            if (inner == 1)
                BY_STORAGE(type, T,
                           index[o] = argmax_of_row(T, elements_at(T, x, o * size), (int32_t)size));
            else
                BY_STORAGE(type, T,
                           argmax_of_columns(T, index + o * inner + i,
                                             elements_at(T, x, o * size * inner + i), size, inner,
                                             inner - i < ARGMAX_CHUNK ? inner - i : ARGMAX_CHUNK));
}

void argmax_cpu(int32_t *index, const Real *x, AxisView v)
{
    argmax_as(TENSOR_REAL, index, x, v);
}

void argmax_bf16(int32_t *index, const Real *x, AxisView v)
{
    argmax_as(TENSOR_BF16, index, x, v);
}
