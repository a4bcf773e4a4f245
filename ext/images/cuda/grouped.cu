/* conv2d in groups: a group has too few channels for a matrix product. Threads of a warp have
 * adjacent channels, so that loads are coalesced. */
#include "ext/images/cuda/conv2d.h"
#include "ops/cuda/shared/columns.cuh"
#include "ops/cuda/shared/map.cuh"

/* The first channel of pixel [i, j] of window n in x, for filter o; -1 outside the image */
__device__ static inline int64_t tap_in_x(const Convolution &c, int64_t n, int64_t o, int64_t i,
                                          int64_t j)
{
    const Windows &s = c.windows;
    const int64_t row = quotient(n, s.columns), b = quotient(row, s.rows);
    const int64_t h = (row - b * s.rows) * s.stride_y - s.padding_y + i * s.dilation;
    const int64_t w = (n - row * s.columns) * s.stride_x - s.padding_x + j * s.dilation;
    const bool inside = h >= 0 && h < s.H && w >= 0 && w < s.W;
    return inside ? ((b * s.H + h) * s.W + w) * s.C + first_channel(&c, o) : -1;
}

/* Thread e: element e of out [windows, O] */
template <typename T>
__global__ void grouped_forward(T *out, const T *x, const Real *weight, const Real *bias,
                                Convolution c, int64_t count)
{
    const int64_t channels = group_channels(&c), size = filter_size(&c);
    GRID_FOR(e, count) {
        const int64_t n = quotient(e, c.O), o = e - n * c.O;
        const Real *w = weight + o * size;
        Real sum = bias ? bias[o] : 0;
        for (int64_t i = 0; i < c.windows.height; i++)
            for (int64_t j = 0; j < c.windows.width; j++, w += channels) {
                const int64_t at = tap_in_x(c, n, o, i, j);
                for (int64_t k = 0; k < (at < 0 ? 0 : channels); k++)
                    sum += load(&x[at + k]) * w[k];
            }
        store(&out[e], sum);
    }
}

/* Thread e: element e of dx [B, H, W, C] */
template <typename T>
__global__ void grouped_backward_x(T *dx, bool accumulate, const T *dout, const Real *weight,
                                   Convolution c, int64_t count)
{
    const Windows &s = c.windows;
    const int64_t channels = group_channels(&c), filters = group_filters(&c);
    const int64_t size = filter_size(&c);
    GRID_FOR(e, count) {
        const int64_t pixel = quotient(e, s.C), channel = e - pixel * s.C;
        const int64_t line = quotient(pixel, s.W), b = quotient(line, s.H);
        const int64_t group = channel / channels, k = channel - group * channels;
        Real sum = 0;
        for (int64_t i = 0; i < s.height; i++) {
            const int64_t down = line - b * s.H + s.padding_y - i * s.dilation;
            const int64_t y = down / s.stride_y;
            if (down < 0 || y * s.stride_y != down || y >= s.rows)
                continue;
            for (int64_t j = 0; j < s.width; j++) {
                const int64_t right = pixel - line * s.W + s.padding_x - j * s.dilation;
                const int64_t column = right / s.stride_x;
                if (right < 0 || column * s.stride_x != right || column >= s.columns)
                    continue;
                const T *g = dout + ((b * s.rows + y) * s.columns + column) * c.O + group * filters;
                const Real *w = weight + group * filters * size + (i * s.width + j) * channels + k;
                for (int64_t m = 0; m < filters; m++)
                    sum += load(&g[m]) * w[m * size];
            }
        }
        contribute(&dx[e], accumulate, sum);
    }
}

/* partial [size, gridDim.y, O]: of each weight k of the filters, sums over each part of the
 * windows; thread blocks with blockIdx.z = z compute the weights z, z + gridDim.z, .. */
template <typename T>
__global__ void grouped_weight_parts(Real *partial, const T *dout, const T *x, Convolution c,
                                     int64_t count, int lanes)
{
    const int64_t o = (int64_t)blockIdx.x * lanes + threadIdx.x % lanes;
    const int64_t part = blockIdx.y, parts = gridDim.y, channels = group_channels(&c);
    for (int64_t k = blockIdx.z; k < filter_size(&c); k += gridDim.z) {
        const int64_t tap = k / channels, i = tap / c.windows.width;
        double sum = 0;
        for (int64_t n = count * part / parts + threadIdx.x / lanes;
             o < c.O && n < count * (part + 1) / parts; n += THREADS / lanes) {
            const int64_t at = tap_in_x(c, n, o, i, tap - i * c.windows.width);
            if (at >= 0)
                sum += (double)(load(&dout[n * c.O + o]) * load(&x[at + k - tap * channels]));
        }
        sum = lane_sum(sum, lanes);
        if ((int)threadIdx.x < lanes && o < c.O)
            partial[(k * parts + part) * c.O + o] = (Real)sum;
    }
}

__global__ void grouped_weight_sums(Real *dweight, bool accumulate, const Real *partial,
                                    int64_t parts, int64_t size, int64_t O)
{
    GRID_FOR(e, O * size) {
        const int64_t o = quotient(e, size), k = e - o * size;
        double sum = 0;
        for (int64_t part = 0; part < parts; part++)
            sum += (double)partial[(k * parts + part) * O + o];
        contribute(&dweight[e], accumulate, (Real)sum);
    }
}

extern "C" void grouped_forward_cuda(TensorType type, Real *out, const Real *x, const Real *weight,
                                     const Real *bias, Convolution c)
{
    const int64_t count = windows_count(&c.windows) * c.O;
    BY_STORAGE(type, T,
               LAUNCH(grouped_forward<T>, blocks_for(count), THREADS, 0, (T *)out, (const T *)x,
                      weight, bias, c, count));
}

extern "C" void grouped_backward_x_cuda(TensorType type, Gradient dx, const Real *dout,
                                        const Real *weight, Convolution c)
{
    const int64_t count = c.windows.B * c.windows.H * c.windows.W * c.windows.C;
    BY_STORAGE(type, T,
               LAUNCH(grouped_backward_x<T>, blocks_for(count), THREADS, 0, (T *)dx.data,
                      dx.accumulate, (const T *)dout, weight, c, count));
}

extern "C" void grouped_backward_weight_cuda(TensorType type, Gradient dweight, const Real *dout,
                                             const Real *x, Convolution c)
{
    const int64_t max_partial = 1 << 22, max_z = 1 << 15;
    const int64_t count = windows_count(&c.windows), size = filter_size(&c), n = size * c.O;
    const int64_t fit = n < max_partial ? max_partial / n : 1, blocks_of_rows = row_blocks(count);
    const int64_t parts = blocks_of_rows < fit ? blocks_of_rows : fit;
    const int lanes = column_lanes(c.O);
    const dim3 blocks((unsigned)((c.O + lanes - 1) / lanes), (unsigned)parts,
                      (unsigned)(size < max_z ? size : max_z));
    Real *partial = device_workspace(parts * n);
    BY_STORAGE(type, T,
               LAUNCH(grouped_weight_parts<T>, blocks, THREADS, 0, partial, (const T *)dout,
                      (const T *)x, c, count, lanes));
    LAUNCH(grouped_weight_sums, blocks_for(n), THREADS, 0, dweight.data, dweight.accumulate,
           (const Real *)partial, parts, size, c.O);
    device_workspace_free(partial);
}

template <TensorType type>
static constexpr ConvolutionKernels convolution_table = { call<conv2d_forward_cuda, type>,
                                                          call<conv2d_backward_x_cuda, type>,
                                                          call<conv2d_backward_weight_cuda, type> };
const ConvolutionKernels convolution_cuda = convolution_table<TENSOR_REAL>;
const ConvolutionKernels convolution_cuda_bf16 = convolution_table<TENSOR_BF16>;
