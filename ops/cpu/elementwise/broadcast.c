/* Sums over the repeats of a broadcast, in both dtypes. */
#include "ops/elementwise/broadcast.h"
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"
#include "ops/shared/internal.h"

enum { PARTS = 64, MIN_CHUNK = 64, MAX_CHUNK = 256 };

/* sum[c] += sum_r x[r, c] in the order of r < rows, for c < count: four rows at a time, since loads
 * and stores of sum are the bottleneck. */
ALWAYS_INLINE void add_columns(int T, double *sum, const Real *x, int64_t rows, int64_t stride,
                               int64_t count)
{
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4, x = elements_at(T, x, 4 * stride))
#pragma omp simd
        for (int64_t c = 0; c < count; c++)
            sum[c] = sum[c] + (double)load(T, x, c) + (double)load(T, x, stride + c) +
                     (double)load(T, x, 2 * stride + c) + (double)load(T, x, 3 * stride + c);
    for (; r < rows; r++, x = elements_at(T, x, stride))
#pragma omp simd
        for (int64_t c = 0; c < count; c++)
            sum[c] += (double)load(T, x, c);
}

/* x[first] + ... + x[end - 1] */
ALWAYS_INLINE double sum_run(int T, const Real *x, int64_t first, int64_t end)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = first; i < end; i++)
        sum += (double)load(T, x, i);
    return sum;
}

/* In PARTS parts for any number of threads: a fixed order of summation. */
static double sum_all(TensorType type, const Real *x, int64_t n)
{
    double part[PARTS], sum = 0;
#pragma omp parallel for schedule(static) num_threads(device_threads_for(n, 0.1))
    for (int p = 0; p < PARTS; p++)
        BY_STORAGE(type, T, part[p] = sum_run(T, x, n * p / PARTS, n * (p + 1) / PARTS));
    for (int p = 0; p < PARTS; p++)
        sum += part[p];
    return sum;
}

/* Adjacent sums that a thread computes at a time: many, so that it reads long contiguous segments;
 * one for runs of I terms, which are contiguous by themselves. */
static int64_t chunk_of(Broadcast b)
{
    const int64_t share = b.P * b.Q / device_threads();
    return b.I > 1 ? 1 : share < MIN_CHUNK ? MIN_CHUNK : share < MAX_CHUNK ? share : MAX_CHUNK;
}

/* sum [count] <- the sums for out[p, q], ..., out[p, q + count - 1]; for runs, count is 1. */
ALWAYS_INLINE void sum_chunk(int T, double *sum, const Real *x, Broadcast b, int64_t p, int64_t q,
                             int64_t count)
{
    const int64_t plane = b.P * b.M * b.Q * b.I, row = b.Q * b.I;
    const int64_t first = (p * b.M * b.Q + q) * b.I;
    memset(sum, 0, (size_t)count * sizeof *sum);
    if (b.I > 1)
        for (int64_t k = 0; k < b.O * b.M; k++) {
            const int64_t start = first + k / b.M * plane + k % b.M * row;
            sum[0] += sum_run(T, x, start, start + b.I);
        }
    else if (b.M > 1)
        for (int64_t o = 0; o < b.O; o++)
            add_columns(T, sum, elements_at(T, x, first + o * plane), b.M, row, count);
    else
        add_columns(T, sum, elements_at(T, x, first), b.O, plane, count);
}

/* out [count] <- factor sum */
ALWAYS_INLINE void contribute_scaled_sums(int T, Gradient out, int64_t first, double factor,
                                          const double *sum, int64_t count)
{
    Real *to = elements_at(T, out.data, first);
    for (int64_t c = 0; c < count; c++)
        contribute(T, to, c, out.accumulate, (Real)(factor * sum[c]));
}

static void broadcast_sum(TensorType out_type, Gradient out, double factor, TensorType type,
                          const Real *x, Broadcast b)
{
    const int64_t n = broadcast_count(b), chunk = chunk_of(b);
    if (b.P * b.Q == 1) {
        const double sum = sum_all(type, x, n);
        BY_STORAGE(out_type, Out, contribute_scaled_sums(Out, out, 0, factor, &sum, 1));
        return;
    }
#pragma omp parallel for collapse(2) schedule(static) num_threads(device_threads_for(n, 0.1))
    for (int64_t p = 0; p < b.P; p++)
        for (int64_t q = 0; q < b.Q; q += chunk) {
            const int64_t count = b.Q - q < chunk ? b.Q - q : chunk;
            double sum[MAX_CHUNK];
            BY_STORAGE(type, T, sum_chunk(T, sum, x, b, p, q, count));
            BY_STORAGE(out_type, Out,
                       contribute_scaled_sums(Out, out, p * b.Q + q, factor, sum, count));
        }
}

void broadcast_sum_cpu(Gradient out, double factor, const Real *x, Broadcast b, bool real_out)
{
    if (b.P * b.Q == broadcast_count(b))
        broadcast_copy_plain(out, (Real)factor, x, b, real_out);
    else
        broadcast_sum(TENSOR_REAL, out, factor, TENSOR_REAL, x, b);
}

void broadcast_sum_bf16(Gradient out, double factor, const Real *x, Broadcast b, bool real_out)
{
    if (b.P * b.Q == broadcast_count(b) && !real_out)
        broadcast_copy_bf16(out, (Real)factor, x, b, false);
    else
        broadcast_sum(real_out ? TENSOR_REAL : TENSOR_BF16, out, factor, TENSOR_BF16, x, b);
}
