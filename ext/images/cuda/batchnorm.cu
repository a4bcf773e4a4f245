/* batchnorm on CUDA. Per part of the rows two sums per channel in double precision; then a kernel
 * of one thread per channel adds them in order. The formulas are those of
 * ext/images/cpu/batchnorm.c. */
#include "ext/images/kernels.h"
#include "ops/cuda/shared/columns.cuh"
#include "ops/cuda/shared/map.cuh"

/* Terms of element e, of channel c: x - s and its square. */
template <typename T> struct ValueTerms {
    const T *x;

    __device__ void add(int64_t e, int64_t c, double *values, double *squares) const
    {
        const double d = (double)load(&x[e]) - (double)load(&x[c]);
        *values += d;
        *squares += d * d;
    }
};

/* g and g n */
template <typename T> struct GradientTerms {
    const T *dout, *x;
    const Real *mean, *r;

    __device__ void add(int64_t e, int64_t c, double *sum_g, double *sum_gn) const
    {
        const Real g = load(&dout[e]), n = (load(&x[e]) - mean[c]) * r[c];
        *sum_g += (double)g;
        *sum_gn += (double)(g * n);
    }
};

/* sums [2, parts, C]. Thread block (i, j) sums part j of its columns. */
template <typename Terms>
__global__ void channel_sums_kernel(PartialSum *sums, Terms terms, int64_t R, int64_t C, int lanes)
{
    const int64_t c = (int64_t)blockIdx.x * lanes + threadIdx.x % lanes;
    const int64_t part = blockIdx.y, parts = gridDim.y, end = R * (part + 1) / parts;
    const int rows = THREADS / lanes;
    double first = 0, second = 0;
    if (c < C)
        for (int64_t row = R * part / parts + threadIdx.x / lanes; row < end; row += rows)
            terms.add(row * C + c, c, &first, &second);
    first = lane_sum(first, lanes);
    second = lane_sum(second, lanes);
    if ((int)threadIdx.x < lanes && c < C) {
        sums[part * C + c].value = first;
        sums[(parts + part) * C + c].value = second;
    }
}

__device__ static inline double parts_sum(const PartialSum *sums, int64_t parts, int64_t C,
                                          int64_t c)
{
    double sum = 0;
    for (int64_t part = 0; part < parts; part++)
        sum += sums[part * C + c].value;
    return sum;
}

template <typename T>
__global__ void statistics_kernel(BatchNormArguments norm, const PartialSum *sums, int64_t parts)
{
    const double R = (double)norm.R;
    GRID_FOR(c, norm.C) {
        const double d = parts_sum(sums, parts, norm.C, c) / R;
        const double squares = parts_sum(sums + parts * norm.C, parts, norm.C, c) - R * d * d;
        batchnorm_statistics(&norm, c, (double)load(&((const T *)norm.x)[c]) + d,
                             squares < 0 ? 0 : squares);
    }
}

/* dweight, dbias and averages [2, C] of g and g n */
__global__ void averages_kernel(Gradient dweight, Gradient dbias, Real *averages, double share,
                                const PartialSum *sums, int64_t parts, int64_t C)
{
    GRID_FOR(c, C) {
        const double sum_g = parts_sum(sums, parts, C, c);
        const double sum_gn = parts_sum(sums + parts * C, parts, C, c);
        if (dweight.data)
            contribute(&dweight.data[c], dweight.accumulate, (Real)sum_gn);
        if (dbias.data)
            contribute(&dbias.data[c], dbias.accumulate, (Real)sum_g);
        averages[c] = (Real)(sum_g * share);
        averages[C + c] = (Real)(sum_gn * share);
    }
}

template <typename Terms>
static void launch_channel_sums(PartialSum *sums, int64_t parts, Terms terms, int64_t R, int64_t C)
{
    const int lanes = column_lanes(C);
    const dim3 blocks((unsigned)((C + lanes - 1) / lanes), (unsigned)parts);
    LAUNCH(channel_sums_kernel<Terms>, blocks, THREADS, 0, sums, terms, R, C, lanes);
}

struct Normalize {
    __device__ Real operator()(Real x, Real mean, Real r, Real weight, Real bias) const
    {
        return (x - mean) * r * weight + bias;
    }
};

struct NormalizeBackward {
    __device__ Real operator()(Real g, Real x, Real mean, Real r, Real weight, Real g_bar,
                               Real gn_bar) const
    {
        return weight * r * (g - g_bar - (x - mean) * r * gn_bar);
    }
};

template <typename T> static void batchnorm_forward(T *out, BatchNormArguments norm)
{
    const int64_t parts = norm.training ? row_blocks(norm.R) : 0, C = norm.C;
    Real *sums =
        parts ? device_workspace(2 * parts * C * (sizeof(PartialSum) / sizeof(Real))) : NULL;
    const T *x = (const T *)norm.x;
    if (sums)
        launch_channel_sums((PartialSum *)sums, parts, ValueTerms<T>{ x }, norm.R, C);
    LAUNCH(statistics_kernel<T>, blocks_for(C), THREADS, 0, norm, (const PartialSum *)sums, parts);
    if (sums)
        device_workspace_free(sums);
    map_inputs(Normalize(), out, false, norm.R * C, WholeInput<T>{ x },
               RepeatedInput<Real>{ norm.mean, C }, RepeatedInput<Real>{ norm.r, C },
               RepeatedInput<Real>{ norm.weight, C }, RepeatedInput<Real>{ norm.bias, C });
}

template <typename T>
static void batchnorm_backward(Gradient dx, Gradient dweight, Gradient dbias, const T *dout,
                               BatchNormArguments norm)
{
    const int64_t parts = row_blocks(norm.R), R = norm.R, C = norm.C;
    const T *x = (const T *)norm.x;
    Real *sums = device_workspace(2 * parts * C * (sizeof(PartialSum) / sizeof(Real)));
    Real *averages = device_workspace(2 * C);
    launch_channel_sums((PartialSum *)sums, parts, GradientTerms<T>{ dout, x, norm.mean, norm.r },
                        R, C);
    LAUNCH(averages_kernel, blocks_for(C), THREADS, 0, dweight, dbias, averages,
           norm.training ? 1 / (double)R : 0, (const PartialSum *)sums, parts, C);
    if (dx.data)
        map_inputs(NormalizeBackward(), (T *)dx.data, dx.accumulate, R * C, WholeInput<T>{ dout },
                   WholeInput<T>{ x }, RepeatedInput<Real>{ norm.mean, C },
                   RepeatedInput<Real>{ norm.r, C }, RepeatedInput<Real>{ norm.weight, C },
                   RepeatedInput<Real>{ averages, C }, RepeatedInput<Real>{ averages + C, C });
    device_workspace_free(averages);
    device_workspace_free(sums);
}

static void batchnorm_forward_cuda(TensorType type, Real *out, BatchNormArguments norm)
{
    BY_STORAGE(type, T, batchnorm_forward((T *)out, norm));
}

static void batchnorm_backward_cuda(TensorType type, Gradient dx, Gradient dweight, Gradient dbias,
                                    const Real *dout, BatchNormArguments norm)
{
    BY_STORAGE(type, T, batchnorm_backward(dx, dweight, dbias, (const T *)dout, norm));
}

template <TensorType type>
static constexpr BatchNormKernels batchnorm_table = { call<batchnorm_forward_cuda, type>,
                                                      call<batchnorm_backward_cuda, type> };
const BatchNormKernels batchnorm_cuda = batchnorm_table<TENSOR_REAL>;
const BatchNormKernels batchnorm_cuda_bf16 = batchnorm_table<TENSOR_BF16>;
