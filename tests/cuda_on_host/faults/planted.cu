/* Small kernels like the library's, which are correct unless the first argument names the fault to
 * plant. The exit status is 0 if all results are correct, 1 if some are wrong. */
#include "check.h"

#include <copy_on_host.h>
#include <mma_on_host.h>
#include <nccl.h>
#include <stdlib.h>
#include <string.h>

static const char *fault = "none";

static bool planted(const char *name)
{
    return strcmp(fault, name) == 0;
}

enum { ROWS = 6, COLUMNS = 300, THREADS = 128 };

/* ------------------------------------------------------------------------------------ layernorm */
template <typename T> __device__ static inline T block_sum(T value)
{
    __shared__ T parts[THREADS / 32];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    if (!planted("no-barrier-before-writing"))
        __syncthreads(); /* an earlier call's parts have been read */
    if (lane == 0)
        parts[warp] = value;
    if (!planted("no-barrier-before-reading"))
        __syncthreads();
    T sum = 0;
    const T *part = parts;
    const int warps = THREADS / 32 + planted("past-shared-memory");
    for (int w = 0; w < warps; w++)
        sum += part[w];
    return sum;
}

__global__ void layernorm(float *out, const float *x, int n)
{
    const float *row = x + (int64_t)blockIdx.x * n;
    float sum = 0, squares = 0;
    for (int i = (int)threadIdx.x; i < n; i += THREADS)
        sum += row[i];
    const float mean = block_sum(sum) / (float)n;
    for (int i = (int)threadIdx.x; i < n; i += THREADS)
        squares += (row[i] - mean) * (row[i] - mean);
    const float r = rsqrtf(block_sum(squares) / (float)n + 1e-5f);
    for (int i = (int)threadIdx.x; i < n; i += THREADS)
        out[(int64_t)blockIdx.x * n + i] = (row[i] - mean) * r;
}

static void check_layernorm(void)
{
    std::vector<float> x(ROWS * COLUMNS);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        x[(size_t)i] = (float)(i * 37 % 101) - (float)(i / COLUMNS) * 20;
    float *in = device_array<float>(x.size()), *out = device_array<float>(x.size());
    copy_in(in, x.data(), x.size());
    LAUNCH(layernorm, ROWS, THREADS, 0, out, in, COLUMNS);
    std::vector<float> got = copy_out(out, x.size());
    for (size_t row = 0; row < ROWS; row++) {
        double mean = 0, variance = 0;
        for (size_t i = 0; i < COLUMNS; i++)
            mean += (double)x[row * COLUMNS + i] / COLUMNS;
        for (size_t i = 0; i < COLUMNS; i++)
            variance += pow((double)x[row * COLUMNS + i] - mean, 2) / COLUMNS;
        for (size_t i = 0; i < COLUMNS; i++) {
            const double wanted = ((double)x[row * COLUMNS + i] - mean) / sqrt(variance + 1e-5);
            CHECK(fabs((double)got[row * COLUMNS + i] - wanted) < 1e-4);
        }
    }
    cudaFree(in);
    cudaFree(out);
}

/* ---------------------------------------------------------------- elementwise, reversing, warps */
__global__ void twice(float *out, const float *x, int n)
{
    const int past = planted("past-the-end") ? 1 : 0;
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < n + past;
         i += (int)(gridDim.x * blockDim.x))
        out[i] = 2 * x[i];
}

/* Reverses x [n] in dynamic shared memory; threads from n on only wait. */
__global__ void reverse(float *out, const float *x, int n)
{
    DYNAMIC_SHARED(float, kept);
    const int i = (int)threadIdx.x;
    if (planted("leaves-early") && i >= n)
        return;
    if (i < n + planted("past-dynamic-shared-memory"))
        kept[i] = i < n ? x[i] : 0;
    if (planted("divergent-barriers") && i % 2)
        __syncthreads();
    else
        __syncthreads();
    if (i < n)
        out[i] = kept[n - 1 - i];
}

/* Reverses within warps, whose lanes must still synchronize. */
__global__ void reverse_warps(float *out, const float *x)
{
    __shared__ float kept[THREADS];
    const int i = (int)threadIdx.x, lane = i % 32;
    kept[i] = x[i];
    if (!planted("no-syncwarp"))
        __syncwarp();
    float value = kept[i - lane + 31 - lane];
    if (planted("incomplete-warp") && lane == 7)
        out[i] = value;
    else
        value = __shfl_sync(0xffffffffu, value, lane);
    out[i] = value;
}

/* Reverses elements that other warps copy asynchronously; those from n on are zero. */
__global__ void reverse_copies(float *out, const float *x, int n)
{
    __shared__ __align__(16) float kept[THREADS];
    const int i = (int)threadIdx.x;
    const bool waits_late = planted("no-wait-for-copies");
    copy_async<4>(&kept[i], i >= n && planted("copies-from-outside") ? x - 1 : x + i,
                  i < n ? 4 : 0);
    if (planted("writes-into-copy"))
        kept[i] = 0;
    if (planted("unaligned-copy") && i == 1)
        copy_async<16>(&kept[i], x + i, 16);
    if (!waits_late)
        wait_for_copies();
    if (!planted("no-barrier-after-copies"))
        __syncthreads();
    out[i] = kept[THREADS - 1 - i];
    if (waits_late)
        wait_for_copies();
    if (planted("leaves-with-copies"))
        copy_async<4>(&kept[i], x + i, 4);
}

/* A dependent launch: it may start before the kernel that writes x has ended. */
__global__ void twice_dependent(float *out, const float *x, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    const float early = planted("reads-before-waiting") && i < n ? x[i] : 0;
    if (planted("writes-before-waiting") && i < n)
        out[i] = 0;
    if (planted("leaves-without-waiting") && i >= n)
        return;
    wait_for_previous_kernel();
    if (i < n)
        out[i] = 2 * (planted("reads-before-waiting") ? early : x[i]);
}

static void check_dependents(void)
{
    const int n = 77;
    std::vector<float> x(THREADS);
    for (int i = 0; i < THREADS; i++)
        x[(size_t)i] = (float)i;
    float *in = device_array<float>(THREADS), *out = device_array<float>(THREADS);
    for (int turn = 0; turn < 2; turn++) { /* early.cpp hides from the second turn on */
        copy_in(in, x.data(), THREADS);
        LAUNCH(twice, 2, 32, 0, out, in, THREADS);
        LAUNCH_DEPENDENT(twice_dependent, 2, 64, 0, in, out, n);
        LAUNCH_DEPENDENT(twice_dependent, 2, 64, 0, out, in, n);
        const std::vector<float> got = copy_out(out, THREADS);
        for (int i = 0; i < n; i++)
            CHECK(got[(size_t)i] == 8 * (float)i);
    }
    cudaFree(in);
    cudaFree(out);
}

static void check_reversals(void)
{
    const int n = 77;
    std::vector<float> x(THREADS);
    for (int i = 0; i < THREADS; i++)
        x[(size_t)i] = (float)i;
    float *in = device_array<float>(THREADS), *out = device_array<float>(THREADS);
    float *exact = device_array<float>(THREADS);
    copy_in(in, x.data(), THREADS);
    LAUNCH(twice, 2, 32, 0, exact, planted("host-pointer") ? x.data() : in, THREADS);
    std::vector<float> got = copy_out(exact, THREADS);
    for (int i = 0; i < THREADS; i++)
        CHECK(got[(size_t)i] == 2 * (float)i);
    LAUNCH(reverse, 1, THREADS, n * sizeof(float), out, in, n);
    got = copy_out(out, THREADS);
    for (int i = 0; i < n; i++)
        CHECK(got[(size_t)i] == (float)(n - 1 - i));
    LAUNCH(reverse_warps, 1, THREADS, 0, out, in);
    got = copy_out(out, THREADS);
    for (int i = 0; i < THREADS; i++)
        CHECK(got[(size_t)i] == (float)(i / 32 * 32 + 31 - i % 32));
    LAUNCH(reverse_copies, 1, THREADS, 0, out, in, n);
    got = copy_out(out, THREADS);
    for (int i = 0; i < THREADS; i++)
        CHECK(got[(size_t)i] == (float)(THREADS - 1 - i < n ? THREADS - 1 - i : 0));
    if (planted("use-after-free")) {
        cudaFree(exact);
        LAUNCH(twice, 2, 32, 0, exact, in, THREADS);
        exact = device_array<float>(THREADS);
    }
    for (float *memory : { in, out, exact })
        cudaFree(memory);
}

/* --------------------------------------------------------------------------------- tensor cores */
/* Each warp sums the rows of a matrix [16, 16], which another warp has written, by a product with
 * ones. */
__global__ void row_sums_by_products(float *out, const float *x)
{
    __shared__ __align__(16) uint16_t rows[THREADS / 32][16][24];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int next = (warp + 1) % (THREADS / 32);
    for (int i = lane; i < 128; i += 32) {
        const uint32_t pair = pack_bf16(x[warp * 256 + 2 * i], x[warp * 256 + 2 * i + 1]);
        memcpy(&rows[warp][i / 8][i % 8 * 2], &pair, sizeof pair);
    }
    if (!planted("no-barrier-before-ldmatrix"))
        __syncthreads();
    uint32_t a[4];
    const uint32_t ones[2] = { 0x3f803f80, 0x3f803f80 };
    float sum[4] = { 0 };
    load_matrices(a, &rows[next][lane % 16][lane / 16 * 8 + planted("unaligned-ldmatrix")]);
    if (planted("incomplete-mma") && lane == 9)
        return;
    mma_bf16(sum, a, ones);
    if (lane % 4 == 0) {
        out[next * 16 + lane / 4] = sum[0];
        out[next * 16 + lane / 4 + 8] = sum[2];
    }
}

static void check_products(void)
{
    std::vector<float> x(256 * THREADS / 32);
    for (size_t i = 0; i < x.size(); i++)
        x[i] = (float)(i * 7 % 31);
    float *in = device_array<float>(x.size()), *out = device_array<float>(x.size() / 16);
    copy_in(in, x.data(), x.size());
    LAUNCH(row_sums_by_products, 1, THREADS, 0, out, in);
    const std::vector<float> got = copy_out(out, x.size() / 16);
    for (size_t row = 0; row < got.size(); row++) {
        float sum = 0;
        for (size_t i = 0; i < 16; i++)
            sum += x[row * 16 + i];
        CHECK(got[row] == sum);
    }
    cudaFree(in);
    cudaFree(out);
}

/* ------------------------------------------------------------------------------------- collectives
 * A communicator of one rank, on a stream of its own between a kernel before and one after it. */
__global__ void double_values(float *x, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        x[i] *= 2;
}

static void check_collectives(void)
{
    enum { N = 100 };
    const std::vector<float> ones(N, 1);
    float *x = device_array<float>(N), *host = planted("reduces-from-host") ? new float[N] : x;
    copy_in(x, ones.data(), N);
    ncclUniqueId id;
    ncclComm_t communicator;
    cudaStream_t side;
    cudaEvent_t before, after;
    CHECK(ncclGetUniqueId(&id) == ncclSuccess);
    CHECK(ncclCommInitRank(&communicator, 1, id, 0) == ncclSuccess);
    cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
    cudaEventCreate(&before);
    cudaEventCreate(&after);
    LAUNCH(double_values, 1, THREADS, 0, x, (int)N);
    cudaEventRecord(before, cuda_stream());
    if (!planted("collective-without-wait"))
        cudaStreamWaitEvent(side, before, 0);
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclReduce(host, x, N / 2, ncclFloat, ncclSum, 0, communicator, side) == ncclSuccess);
    float *second = x + N / 2 - (planted("overlaps-in-a-group") ? 1 : 0);
    CHECK(ncclReduce(second, second, N / 2, ncclFloat, ncclSum, 0, communicator, side) ==
          ncclSuccess);
    if (!planted("leaves-a-group-open"))
        CHECK(ncclGroupEnd() == ncclSuccess);
    cudaEventRecord(after, side);
    if (!planted("work-without-wait"))
        cudaStreamWaitEvent(cuda_stream(), after, 0);
    LAUNCH(double_values, 1, THREADS, 0, x, (int)N);
    for (float value : copy_out(x, N))
        CHECK(value == 4);
    CHECK(ncclCommDestroy(communicator) == ncclSuccess);
    cudaEventDestroy(before);
    cudaEventDestroy(after);
    cudaStreamDestroy(side);
    cudaFree(x);
}

int main(int count, char **arguments)
{
    if (count > 1)
        fault = arguments[1];
    check_layernorm();
    check_reversals();
    check_dependents();
    check_products();
    check_collectives();
    cudaStreamDestroy(cuda_stream());
    return checked();
}
