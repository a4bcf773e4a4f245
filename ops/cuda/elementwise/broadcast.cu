#include "ops/cuda/elementwise/broadcast.cuh"
#include "ops/cuda/shared/columns.cuh"
#include "ops/kernels.h"

extern "C" void broadcast_copy_cuda(TensorType type, Gradient out, Real factor, const Real *x,
                                    Broadcast b, bool real_x)
{
    if (real_x)
        map(type, ScaleBy{ factor }, out.data, out.accumulate, broadcast_count(b),
            BroadcastInput<Real>{ x, b });
    else
        map(type, ScaleBy{ factor }, out.data, out.accumulate, broadcast_count(b),
            Broadcasted{ x, b });
}

/* The terms of a sum, in two loops, of which the inner one is split into parts. */
struct Terms {
    int64_t outer, outer_stride, inner, inner_stride;
};

static Terms terms_of(Broadcast b)
{
    const int64_t plane = b.P * b.M * b.Q * b.I, row = b.Q * b.I;
    if (b.I > 1)
        return { b.O * b.M, b.M > 1 ? row : plane, b.I, 1 };
    if (b.M > 1)
        return { b.O, plane, b.M, row };
    return { 1, 0, b.O, plane };
}

/* Adjacent sums per thread block, whose other threads share their terms: none for runs of I terms,
 * which are contiguous. */
static int lanes_for(Broadcast b)
{
    return b.I > 1 ? 1 : column_lanes(b.Q);
}

static int64_t parts_of(Broadcast b)
{
    return sum_parts(broadcast_count(b) / (b.P * b.Q), b.P * b.Q, lanes_for(b));
}

/* out [parts, P, Q] <- factor times the sum of each part; blockIdx.y is the part. */
template <typename Out, typename T>
__global__ void broadcast_sums(Out *out, bool accumulate, double factor, const T *x, Broadcast b,
                               Terms terms, int lanes)
{
    const int lane = threadIdx.x % lanes, row = threadIdx.x / lanes, rows = blockDim.x / lanes;
    const int64_t part = blockIdx.y, parts = gridDim.y, tiles = (b.Q + lanes - 1) / lanes;
    const int64_t first = terms.inner * part / parts, end = terms.inner * (part + 1) / parts;
    for (int64_t tile = blockIdx.x; tile < b.P * tiles; tile += gridDim.x) {
        const int64_t p = tile / tiles, q = tile % tiles * lanes + lane;
        const T *start = x + (p * b.M * b.Q + q) * b.I;
        double sum = 0;
        for (int64_t k = 0; q < b.Q && k < terms.outer; k++, start += terms.outer_stride)
#pragma unroll 8
            for (int64_t j = first + row; j < end; j += rows)
                sum += term(&start[j * terms.inner_stride]);
        sum = lanes == 1 ? block_sum(sum) : lane_sum(sum, lanes);
        if ((int)threadIdx.x < lanes && q < b.Q)
            store_sum(&out[(part * b.P + p) * b.Q + q], accumulate, factor, sum);
    }
}

template <typename Out, typename T>
static void launch_sums(Out *out, bool accumulate, double factor, const T *x, Broadcast b,
                        int64_t parts)
{
    const int lanes = lanes_for(b);
    const Terms terms = terms_of(b);
    const int threads = lanes > 1 || terms.inner / parts > 16 * WARP ? THREADS : WARP;
    const unsigned tiles = blocks_for(b.P * ((b.Q + lanes - 1) / lanes), 1);
    LAUNCH((broadcast_sums<Out, T>), dim3(tiles, (unsigned)parts), threads, 0, out, accumulate,
           factor, x, b, terms, lanes);
}

template <typename Out, typename T>
static void sum(Gradient out, double factor, const T *x, Broadcast b)
{
    const int64_t parts = parts_of(b);
    Out *to = (Out *)out.data;
    if (parts == 1) {
        launch_sums(to, out.accumulate, factor, x, b, 1);
        return;
    }
    Real *scratch = device_workspace(sum_scratch(parts, b.P * b.Q));
    PartialSum *partial = (PartialSum *)scratch;
    launch_sums(partial, false, 1, x, b, parts);
    launch_column_sums(to, 1, out.accumulate, factor, (const PartialSum *)partial, parts,
                       b.P * b.Q);
    device_workspace_free(scratch);
}

extern "C" void broadcast_sum_cuda(TensorType type, Gradient out, double factor, const Real *x,
                                   Broadcast b, bool real_out)
{
    if (real_out)
        BY_STORAGE(type, T, sum<Real>(out, factor, (const T *)x, b));
    else if (b.P * b.Q == broadcast_count(b))
        map(type, ScaleBy{ (Real)factor }, out.data, out.accumulate, b.P * b.Q, x);
    else
        BY_STORAGE(type, T, sum<T>(out, factor, (const T *)x, b));
}
