#include "ext/images/cuda/conv2d.h"
#include "ops/cuda/shared/map.cuh"

/* Element [b, y, x, i, j, c] of out */
template <typename T> struct UnfoldInput {
    const T *x;
    Windows u;

    template <int LANES> bool fits() const
    {
        return packs_fit<LANES>(x) && u.C % LANES == 0;
    }
    template <int LANES> __device__ Reals<LANES> pack(int64_t e) const
    {
        const int64_t pixel = quotient(e, u.C), line = quotient(pixel, u.width);
        const int64_t window = quotient(line, u.height), row = quotient(window, u.columns);
        const int64_t b = quotient(row, u.rows);
        const int64_t h =
            (row - b * u.rows) * u.stride_y - u.padding_y + (line - window * u.height) * u.dilation;
        const int64_t w = (window - row * u.columns) * u.stride_x - u.padding_x +
                          (pixel - line * u.width) * u.dilation;
        if (h >= 0 && h < u.H && w >= 0 && w < u.W)
            return load_pack<LANES>(&x[((b * u.H + h) * u.W + w) * u.C + e - pixel * u.C]);
        Reals<LANES> zeros = {};
        return zeros;
    }
    __device__ Real at(int64_t e) const
    {
        return pack<1>(e).value[0];
    }
};

/* Element [b, h, w, c] of dx */
template <typename T> struct FoldInput {
    const T *dout;
    Windows u;

    template <int LANES> bool fits() const
    {
        return packs_fit<LANES>(dout) && u.C % LANES == 0;
    }
    template <int LANES> __device__ Reals<LANES> pack(int64_t e) const
    {
        const int64_t pixel = quotient(e, u.C), c = e - pixel * u.C, row = quotient(pixel, u.W);
        const int64_t b = quotient(row, u.H), h = row - b * u.H, w = pixel - row * u.W;
        Reals<LANES> sum = {};
        for (int64_t i = 0; i < u.height; i++) {
            const int64_t down = h + u.padding_y - i * u.dilation, y = down / u.stride_y;
            if (down < 0 || y * u.stride_y != down || y >= u.rows)
                continue;
            for (int64_t j = 0; j < u.width; j++) {
                const int64_t right = w + u.padding_x - j * u.dilation, x = right / u.stride_x;
                if (right < 0 || x * u.stride_x != right || x >= u.columns)
                    continue;
                const int64_t window = (b * u.rows + y) * u.columns + x;
                const Reals<LANES> term =
                    load_pack<LANES>(&dout[((window * u.height + i) * u.width + j) * u.C + c]);
#pragma unroll
                for (int k = 0; k < LANES; k++)
                    sum.value[k] += term.value[k];
            }
        }
        return sum;
    }
    __device__ Real at(int64_t e) const
    {
        return pack<1>(e).value[0];
    }
};

extern "C" void unfold_cuda_windows(TensorType type, Real *out, const Real *x, Windows u)
{
    const int64_t n = u.B * u.rows * u.columns * u.height * u.width * u.C;
    BY_STORAGE(type, T,
               map_inputs(Identity(), (T *)out, false, n, UnfoldInput<T>{ (const T *)x, u }));
}

extern "C" void fold_cuda(TensorType type, Gradient dx, const Real *dout, Windows u)
{
    BY_STORAGE(type, T,
               map_inputs(Identity(), (T *)dx.data, dx.accumulate, u.B * u.H * u.W * u.C,
                          FoldInput<T>{ (const T *)dout, u }));
}

template <TensorType type>
static constexpr UnfoldKernels unfold_table = { call<unfold_cuda_windows, type>,
                                                call<fold_cuda, type> };
const UnfoldKernels unfold_cuda = unfold_table<TENSOR_REAL>;
const UnfoldKernels unfold_cuda_bf16 = unfold_table<TENSOR_BF16>;
