/* cumulative_sum on the CPU, in Real and in bf16. */
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"
#include "ops/shared/internal.h"

/* The last axis: each sum reads contiguous elements. */
ALWAYS_INLINE void run_along_row(int T, Real *out, bool accumulate, const Real *x, bool reverse,
                                 int64_t size)
{
    double sum = 0;
    for (int64_t step = 0; step < size; step++) {
        int64_t n = reverse ? size - 1 - step : step;
        sum += (double)load(T, x, n);
        contribute(T, out, n, accumulate, (Real)sum);
    }
}

/* Another axis: count <= SUM_CHUNK adjacent sums run in parallel, in vector lanes. */
enum { SUM_CHUNK = 64 };
ALWAYS_INLINE void run_along_columns(int T, Real *out, bool accumulate, const Real *x, bool reverse,
                                     int64_t size, int64_t inner, int64_t count)
{
    double sum[SUM_CHUNK] = { 0 };
    for (int64_t step = 0; step < size; step++) {
        int64_t row = (reverse ? size - 1 - step : step) * inner;
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            sum[i] += (double)load(T, x, row + i);
            contribute(T, out, row + i, accumulate, (Real)sum[i]);
        }
    }
}

static void cumulative_sum_as(TensorType type, Gradient out, const Real *x, bool reverse,
                              AxisView v)
{
    const int64_t outer = v.outer, size = v.size, inner = v.inner;
#pragma omp parallel for collapse(2) schedule(static)                                              \
    num_threads(threads_for(outer *size *inner, 1))
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i += SUM_CHUNK) {
            int64_t at = o * size * inner + i,
                    count = inner - i < SUM_CHUNK ? inner - i : SUM_CHUNK;
            if (inner == 1)
                BY_STORAGE(type, T,
                           run_along_row(T, elements_at(T, out.data, at), out.accumulate,
                                         elements_at(T, x, at), reverse, size));
            else
                BY_STORAGE(type, T,
                           run_along_columns(T, elements_at(T, out.data, at), out.accumulate,
                                             elements_at(T, x, at), reverse, size, inner, count));
        }
}

void cumulative_sum_cpu(Gradient out, const Real *x, bool reverse, AxisView v)
{
    cumulative_sum_as(TENSOR_REAL, out, x, reverse, v);
}

void cumulative_sum_bf16(Gradient out, const Real *x, bool reverse, AxisView v)
{
    cumulative_sum_as(TENSOR_BF16, out, x, reverse, v);
}
