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

/* Whether x[a] comes before x[b] as a maximum: NaN, then larger values, then lower indices. */
ALWAYS_INLINE bool comes_before(int T, const Real *x, int64_t a, int64_t b)
{
    const Real x_a = load(T, x, a), x_b = load(T, x, b);
    const bool a_nan = x_a != x_a, b_nan = x_b != x_b;
    if (a_nan != b_nan)
        return a_nan;
    return x_a > x_b || ((a_nan || x_a == x_b) && a < b);
}

/* A row as 16 columns, whose maxima are then compared; a short row as one column. */
ALWAYS_INLINE int32_t argmax_of_row(int T, const Real *x, int64_t size)
{
    enum { WIDTH = 16 };
    int32_t step[WIDTH];
    const int64_t steps = size / WIDTH;
    int64_t best = 0;
    if (steps < 3) {
        argmax_of_columns(T, step, x, size, 1, 1);
        return step[0];
    }
    argmax_of_columns(T, step, x, steps, WIDTH, WIDTH);
    for (int64_t lane = 0; lane < WIDTH; lane++)
        best =
            comes_before(T, x, step[lane] * WIDTH + lane, best) ? step[lane] * WIDTH + lane : best;
    for (int64_t j = steps * WIDTH; j < size; j++)
        best = comes_before(T, x, j, best) ? j : best;
    return (int32_t)best;
}

static void argmax_as(TensorType type, int32_t *index, const Real *x, AxisView v)
{
    const int64_t outer = v.outer, size = v.size, inner = v.inner;
#pragma omp parallel for collapse(2) schedule(static)                                              \
    num_threads(threads_for(outer *size *inner, 0.7))
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i += ARGMAX_CHUNK)
            if (inner == 1)
                BY_STORAGE(type, T, index[o] = argmax_of_row(T, elements_at(T, x, o * size), size));
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
