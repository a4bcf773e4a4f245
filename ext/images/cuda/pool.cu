#include "ext/images/kernels.h"
#include "ops/cuda/shared/map.cuh"

/* Thread e: element e of out [B, rows, columns, C] */
template <typename T> __global__ void max_pool_kernel(T *out, int32_t *index, const T *x, Windows s)
{
    GRID_FOR(e, s.B * s.rows * s.columns * s.C) {
        const int64_t window = quotient(e, s.C), row = quotient(window, s.columns);
        const int64_t b = quotient(row, s.rows);
        const Interval h = rows_of_window(&s, row - b * s.rows);
        const Interval w = columns_of_window(&s, window - row * s.columns);
        const T *image = x + b * s.H * s.W * s.C + e - window * s.C;
        int64_t first = h.first * s.W + w.first;
        Real max = load(&image[first * s.C]);
        for (int64_t i = h.first; i < h.end; i++)
            for (int64_t j = w.first; j < w.end; j++) {
                const Real value = load(&image[(i * s.W + j) * s.C]);
                if (max == max && !(value <= max)) {
                    max = value;
                    first = i * s.W + j;
                }
            }
        store(&out[e], max);
        index[e] = (int32_t)first;
    }
}

/* Element e of average_pool's out, but for the factor: the sum over the window's rows of pixels is
 * compensated (Kahan 1965), as it may have thousands of terms. */
template <typename T> struct PoolSum {
    const T *x;
    Windows s;

    template <int LANES> bool fits() const
    {
        return packs_fit<LANES>(x) && s.C % LANES == 0;
    }
    template <int LANES> __device__ Reals<LANES> pack(int64_t e) const
    {
        const int64_t window = quotient(e, s.C), row = quotient(window, s.columns);
        const int64_t b = quotient(row, s.rows);
        const Interval h = rows_of_window(&s, row - b * s.rows);
        const Interval w = columns_of_window(&s, window - row * s.columns);
        const T *image = x + b * s.H * s.W * s.C + e - window * s.C;
        Reals<LANES> sum = {}, lost = {};
        for (int64_t i = h.first; i < h.end; i++) {
            Reals<LANES> row_sum = {};
            for (int64_t j = w.first; j < w.end; j++) {
                const Reals<LANES> term = load_pack<LANES>(&image[(i * s.W + j) * s.C]);
#pragma unroll
                for (int k = 0; k < LANES; k++)
                    row_sum.value[k] += term.value[k];
            }
#pragma unroll
            for (int k = 0; k < LANES; k++) {
                const Real term = row_sum.value[k] - lost.value[k], next = sum.value[k] + term;
                lost.value[k] = next - sum.value[k] - term;
                sum.value[k] = next;
            }
        }
        return sum;
    }
    __device__ Real at(int64_t e) const
    {
        return pack<1>(e).value[0];
    }
};

/* Element e of dx, before its division; index may be NULL */
template <typename T> struct PoolGradient {
    const T *dout;
    const int32_t *index;
    Windows s;

    template <int LANES> bool fits() const
    {
        return packs_fit<LANES>(dout) && s.C % LANES == 0;
    }
    template <int LANES> __device__ Reals<LANES> pack(int64_t e) const
    {
        const int64_t p = quotient(e, s.C), line = quotient(p, s.W), b = quotient(line, s.H);
        const int64_t h = line - b * s.H, w = p - line * s.W;
        const Interval y = windows_of_row(&s, h);
        const Interval x = windows_of_column(&s, w);
        Reals<LANES> sum = {};
        for (int64_t i = y.first; i < y.end; i++)
            for (int64_t j = x.first; j < x.end; j++) {
                const int64_t first = ((b * s.rows + i) * s.columns + j) * s.C + e - p * s.C;
                const Reals<LANES> term = load_pack<LANES>(&dout[first]);
#pragma unroll
                for (int k = 0; k < LANES; k++)
                    if (!index || index[first + k] == h * s.W + w)
                        sum.value[k] += term.value[k];
            }
        return sum;
    }
    __device__ Real at(int64_t e) const
    {
        return pack<1>(e).value[0];
    }
};

static void max_pool_cuda(TensorType type, Real *out, int32_t *index, const Real *x, Windows s)
{
    const int64_t n = s.B * s.rows * s.columns * s.C;
    BY_STORAGE(
        type, T,
        LAUNCH(max_pool_kernel<T>, blocks_for(n), THREADS, 0, (T *)out, index, (const T *)x, s));
}

static void average_pool_cuda(TensorType type, Real *out, const Real *x, Windows s)
{
    const ScaleBy share = { 1 / (Real)(s.height * s.width) };
    BY_STORAGE(type, T,
               map_inputs(share, (T *)out, false, s.B * s.rows * s.columns * s.C,
                          PoolSum<T>{ (const T *)x, s }));
}

static void pool_backward_cuda(TensorType type, Gradient dx, const Real *dout, const int32_t *index,
                               Windows s)
{
    const ScaleBy share = { index ? 1 : 1 / (Real)(s.height * s.width) };
    BY_STORAGE(type, T,
               map_inputs(share, (T *)dx.data, dx.accumulate, s.B * s.H * s.W * s.C,
                          PoolGradient<T>{ (const T *)dout, index, s }));
}

template <TensorType type>
static constexpr PoolKernels pool_table = { call<max_pool_cuda, type>,
                                            call<average_pool_cuda, type>,
                                            call<pool_backward_cuda, type> };
const PoolKernels pool_cuda = pool_table<TENSOR_REAL>;
const PoolKernels pool_cuda_bf16 = pool_table<TENSOR_BF16>;
