/* batchnorm in both dtypes; ops/rows/batchnorm.c has the derivation. Each block of rows has two
 * sums per channel in double precision, which are added in the order of the blocks: these depend on
 * R alone, so the sums do not depend on the number of threads. One pass over x serves mean and
 * variance, s = x_0 of the channel:
 *   mean = s + sum_i (x_i - s) / R     sum_i (x_i - mean)^2 = sum_i (x_i - s)^2 - R (mean - s)^2
 * As s is one of the x_i, the first sum is at most R + 1 times the result, so the difference loses
 * at most log10(R + 1) of the 16 digits of a double. */
#include "ops/cpu/shared/columns.h"
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"
#include "ops/shared/internal.h"

/* [blocks, 2, C] */
typedef struct ChannelSums {
    double *values;
    int64_t blocks, C;
} ChannelSums;

static ChannelSums channel_sums_begin(const BatchNormArguments *norm)
{
    const int64_t blocks = row_blocks(norm->R), count = 2 * blocks * norm->C;
    const int64_t per_double = sizeof(double) / sizeof(Real);
    ChannelSums sums = { (double *)device_workspace(count * per_double), blocks, norm->C };
    memset(sums.values, 0, (size_t)count * sizeof(double));
    return sums;
}

/* The sum over the blocks: first sum 0 or second sum 1 of channel c. */
static double channel_sum(const ChannelSums *sums, int which, int64_t c)
{
    double sum = 0;
    for (int64_t i = 0; i < sums->blocks; i++)
        sum += sums->values[(2 * i + which) * sums->C + c];
    return sum;
}

static void channel_sums_end(const ChannelSums *sums)
{
    device_workspace_free((Real *)sums->values);
}

/* Block i: the sums of x - s and its square. */
ALWAYS_INLINE void sum_values(int T, const ChannelSums *sums, const BatchNormArguments *norm,
                              int64_t i)
{
    double *values = sums->values + 2 * i * norm->C, *squares = values + norm->C;
    for (int64_t row = row_block_start(i, norm->R); row < row_block_start(i + 1, norm->R); row++) {
        const Real *x = elements_at(T, norm->x, row * norm->C);
#pragma omp simd
        for (int64_t c = 0; c < norm->C; c++) {
            const double d = (double)load(T, x, c) - (double)load(T, norm->x, c);
            values[c] += d;
            squares[c] += d * d;
        }
    }
}

/* Block i: the sums of g and g n. */
ALWAYS_INLINE void sum_gradients(int T, const ChannelSums *sums, const Real *dout,
                                 const BatchNormArguments *norm, int64_t i)
{
    double *sum_g = sums->values + 2 * i * norm->C, *sum_gn = sum_g + norm->C;
    for (int64_t row = row_block_start(i, norm->R); row < row_block_start(i + 1, norm->R); row++) {
        const Real *x = elements_at(T, norm->x, row * norm->C);
        const Real *g = elements_at(T, dout, row * norm->C);
#pragma omp simd
        for (int64_t c = 0; c < norm->C; c++) {
            const Real n = (load(T, x, c) - norm->mean[c]) * norm->r[c];
            sum_g[c] += (double)load(T, g, c);
            sum_gn[c] += (double)(load(T, g, c) * n);
        }
    }
}

ALWAYS_INLINE void batchnorm_row(int T, Real *out, const Real *x, const BatchNormArguments *norm)
{
#pragma omp simd
    for (int64_t c = 0; c < norm->C; c++)
        store(T, out, c,
              (load(T, x, c) - norm->mean[c]) * norm->r[c] * norm->weight[c] + norm->bias[c]);
}

/* averages [2, C]: of g and g n */
ALWAYS_INLINE void batchnorm_input_row(int T, Gradient dx, const Real *dout, const Real *x,
                                       const Real *averages, const BatchNormArguments *norm)
{
    const Real *g_bar = averages, *gn_bar = averages + norm->C;
#pragma omp simd
    for (int64_t c = 0; c < norm->C; c++) {
        const Real n = (load(T, x, c) - norm->mean[c]) * norm->r[c];
        contribute(T, dx.data, c, dx.accumulate,
                   norm->weight[c] * norm->r[c] * (load(T, dout, c) - g_bar[c] - n * gn_bar[c]));
    }
}

static void batchnorm_forward_as(TensorType type, Real *out, BatchNormArguments norm)
{
    const int64_t R = norm.R, C = norm.C;
    const ChannelSums sums = channel_sums_begin(&norm);
    PRAGMA(omp parallel for schedule(static) num_threads(device_threads_for(R *C, 0.2)))
    for (int64_t i = 0; i < (norm.training ? sums.blocks : 0); i++)
        BY_STORAGE(type, T, sum_values(T, &sums, &norm, i));
    for (int64_t c = 0; c < C; c++) {
        const double d = channel_sum(&sums, 0, c) / (double)R;
        const double squares = channel_sum(&sums, 1, c) - (double)R * d * d;
        Real s = 0;
        BY_STORAGE(type, T, s = load(T, norm.x, c));
        batchnorm_statistics(&norm, c, (double)s + d, squares < 0 ? 0 : squares);
    }
    channel_sums_end(&sums);
    PRAGMA(omp parallel for schedule(static) num_threads(device_threads_for(R *C, 0.2)))
    for (int64_t row = 0; row < R; row++)
        BY_STORAGE(
            type, T,
            batchnorm_row(T, elements_at(T, out, row * C), elements_at(T, norm.x, row * C), &norm));
}

/* averages: those of the rows, which training subtracts */
static void batchnorm_input_backward(TensorType type, Gradient dx, const Real *dout,
                                     const Real *averages, const BatchNormArguments *norm)
{
    const int64_t R = norm->R, C = norm->C;
    PRAGMA(omp parallel for schedule(static) num_threads(device_threads_for(R *C, 0.3)))
    for (int64_t row = 0; row < R; row++)
        BY_STORAGE(type, T, const int64_t first = row * C;
                   const Gradient to = { elements_at(T, dx.data, first), dx.accumulate };
                   batchnorm_input_row(T, to, elements_at(T, dout, first),
                                       elements_at(T, norm->x, first), averages, norm));
}

static void batchnorm_backward_as(TensorType type, Gradient dx, Gradient dweight, Gradient dbias,
                                  const Real *dout, BatchNormArguments norm)
{
    const int64_t R = norm.R, C = norm.C;
    const double share = norm.training ? 1 / (double)R : 0;
    const ChannelSums sums = channel_sums_begin(&norm);
    Real *averages = device_workspace(2 * C);
    PRAGMA(omp parallel for schedule(static) num_threads(device_threads_for(R *C, 0.3)))
    for (int64_t i = 0; i < sums.blocks; i++)
        BY_STORAGE(type, T, sum_gradients(T, &sums, dout, &norm, i));
    for (int64_t c = 0; c < C; c++) {
        const double sum_g = channel_sum(&sums, 0, c), sum_gn = channel_sum(&sums, 1, c);
        if (dweight.data)
            gradient_add(dweight, c, (Real)sum_gn);
        if (dbias.data)
            gradient_add(dbias, c, (Real)sum_g);
        averages[c] = (Real)(sum_g * share);
        averages[C + c] = (Real)(sum_gn * share);
    }
    if (dx.data)
        batchnorm_input_backward(type, dx, dout, averages, &norm);
    device_workspace_free(averages);
    channel_sums_end(&sums);
}

void batchnorm_forward_cpu(Real *out, BatchNormArguments norm)
{
    batchnorm_forward_as(TENSOR_REAL, out, norm);
}

void batchnorm_forward_bf16(Real *out, BatchNormArguments norm)
{
    batchnorm_forward_as(TENSOR_BF16, out, norm);
}

void batchnorm_backward_cpu(Gradient dx, Gradient dweight, Gradient dbias, const Real *dout,
                            BatchNormArguments norm)
{
    batchnorm_backward_as(TENSOR_REAL, dx, dweight, dbias, dout, norm);
}

void batchnorm_backward_bf16(Gradient dx, Gradient dweight, Gradient dbias, const Real *dout,
                             BatchNormArguments norm)
{
    batchnorm_backward_as(TENSOR_BF16, dx, dweight, dbias, dout, norm);
}
