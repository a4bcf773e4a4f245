#include "ops/kernels.h"
#include "ops/cuda/shared/map.cuh"

/* For single elements (inner = 1): a tile of 32 x 32 elements is transposed in shared memory, so
 * that loads and stores are both coalesced. */
template <typename T>
__global__ void transpose_tiles(T *out, bool accumulate, const T *x, int64_t outer, int64_t p,
                                int64_t middle, int64_t q)
{
    __shared__ Real tile[WARP][WARP + 1]; /* padded: no bank conflicts in a column */
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = THREADS / WARP;
    const int64_t p_tiles = (p + WARP - 1) / WARP, q_tiles = (q + WARP - 1) / WARP;
    for (int64_t t = blockIdx.x; t < outer * middle * p_tiles * q_tiles; t += gridDim.x) {
        const int64_t j = t % q_tiles * WARP, i = t / q_tiles % p_tiles * WARP;
        const int64_t plane = t / q_tiles / p_tiles, o = plane / middle, m = plane % middle;
        for (int row = warp; row < WARP; row += warps)
            if (i + row < p && j + lane < q)
                tile[row][lane] = load(&x[((o * p + i + row) * middle + m) * q + j + lane]);
        __syncthreads();
        for (int row = warp; row < WARP; row += warps)
            if (j + row < q && i + lane < p)
                contribute(&out[((o * q + j + row) * middle + m) * p + i + lane], accumulate,
                           tile[lane][row]);
        __syncthreads();
    }
}

/* For runs of `inner` elements: the element of x for element e = [o, j, m, i, c] of out. */
template <typename T> struct TransposedInput {
    const T *x;
    int64_t p, middle, q, inner;

    template <int LANES> bool fits() const
    {
        return packs_fit<LANES>(x) && inner % LANES == 0;
    }
    __device__ int64_t offset(int64_t e) const
    {
        const int64_t run = quotient(e, inner), c = e - run * inner;
        const int64_t row = quotient(run, p), i = run - row * p;
        const int64_t plane = quotient(row, middle), m = row - plane * middle;
        const int64_t o = quotient(plane, q), j = plane - o * q;
        return (((o * p + i) * middle + m) * q + j) * inner + c;
    }
    __device__ Real at(int64_t e) const
    {
        return load(&x[offset(e)]);
    }
    template <int LANES> __device__ Reals<LANES> pack(int64_t e) const
    {
        return load_pack<LANES>(&x[offset(e)]);
    }
};

extern "C" void transpose_cuda(TensorType type, Gradient out, const Real *x, int64_t outer,
                               int64_t p, int64_t middle, int64_t q, int64_t inner)
{
    const int64_t n = outer * p * middle * q * inner;
    if (inner == 1)
        BY_STORAGE(type, T,
                   LAUNCH(transpose_tiles<T>, blocks_for(n, WARP * WARP), THREADS, 0, (T *)out.data,
                          out.accumulate, (const T *)x, outer, p, middle, q));
    else
        BY_STORAGE(type, T,
                   map_inputs(Identity(), (T *)out.data, out.accumulate, n,
                              TransposedInput<T>{ (const T *)x, p, middle, q, inner }));
}
