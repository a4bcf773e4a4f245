/* Sums in double precision, as on the CPU: rounding errors would grow along the axis. */
#include "ops/cuda/shared/columns.cuh"
#include "ops/kernels.h"

/* Consecutive elements along the axis per thread. */
enum { RUN = 4 };

/* Inclusive prefix sum in shared memory, by doubling the reach:
 * before[thread] <- sum of value over the threads thread, thread - lanes, thread - 2 lanes, ... */
__device__ static inline void scan_runs(double *before, double value, int lanes)
{
    before[threadIdx.x] = value;
    __syncthreads();
    for (int reach = lanes; reach < THREADS; reach *= 2) {
        const double more = (int)threadIdx.x >= reach ? before[threadIdx.x - reach] : 0;
        __syncthreads();
        before[threadIdx.x] += more;
        __syncthreads();
    }
}

/* A block computes `lanes` adjacent sums, THREADS / lanes runs of RUN elements of each at a time: a
 * prefix sum over the runs' totals in shared memory gives each run its offset, and `carried` is the
 * total of all earlier runs. */
template <typename T>
__global__ void cumulative_sums(T *out, bool accumulate, const T *x, bool reverse, int64_t outer,
                                int64_t size, int64_t inner, int lanes)
{
    __shared__ double before[THREADS];
    const int lane = threadIdx.x % lanes, run = threadIdx.x / lanes, runs = THREADS / lanes;
    const int64_t tiles = (inner + lanes - 1) / lanes;
    for (int64_t tile = blockIdx.x; tile < outer * tiles; tile += gridDim.x) {
        const int64_t i = tile % tiles * lanes + lane, base = tile / tiles * size * inner + i;
        double carried = 0;
        for (int64_t first = 0; first < size; first += runs * RUN) {
            const int64_t start = first + run * RUN, left = i < inner ? size - start : 0;
            double sum[RUN];
#pragma unroll
            for (int k = 0; k < RUN; k++) {
                const int64_t n = reverse ? size - 1 - start - k : start + k;
                sum[k] = k < left ? (double)load(&x[base + n * inner]) : 0;
            }
#pragma unroll
            for (int k = 1; k < RUN; k++)
                sum[k] += sum[k - 1];
            scan_runs(before, sum[RUN - 1], lanes);
            const double here = carried + (run > 0 ? before[threadIdx.x - lanes] : 0);
            carried += before[THREADS - lanes + lane];
            __syncthreads(); /* all threads have read `before`; the next iteration overwrites it */
#pragma unroll
            for (int k = 0; k < RUN; k++) {
                const int64_t n = reverse ? size - 1 - start - k : start + k;
                if (k < left)
                    contribute(&out[base + n * inner], accumulate, (Real)(here + sum[k]));
            }
        }
    }
}

extern "C" void cumulative_sum_cuda(TensorType type, Gradient out, const Real *x, bool reverse,
                                    AxisView v)
{
    const int lanes = column_lanes(v.inner);
    const unsigned blocks = blocks_for(v.outer * ((v.inner + lanes - 1) / lanes), 1);
    BY_STORAGE(type, T,
               LAUNCH(cumulative_sums<T>, blocks, THREADS, 0, (T *)out.data, out.accumulate,
                      (const T *)x, reverse, v.outer, v.size, v.inner, lanes));
}
