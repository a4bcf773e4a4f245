/* Tests of the emulation: results of kernels and of the runtime's calls, and their errors. */
#include "check.h"

#include <mma_on_host.h>
#include <string.h>
#include <thread>

/* -------------------------------------------------------------------------------------- kernels */
/* Sums a value per thread over the block: shuffles within warps, shared memory between them. */
template <typename T> __device__ static inline T block_sum(T value)
{
    __shared__ T parts[32];
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = value;
    __syncthreads();
    T sum = 0;
    for (unsigned warp = 0; warp < blockDim.x / 32; warp++)
        sum += parts[warp];
    return sum;
}

template <typename T> __global__ void row_sums(T *out, const T *x, int64_t n)
{
    T sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        sum += x[blockIdx.x * n + i];
    sum = block_sum(sum);
    T again = block_sum((T)1);
    if (threadIdx.x == 0)
        out[blockIdx.x] = sum * again / (T)blockDim.x;
}

template <typename T> static void check_sums(void)
{
    enum { ROWS = 5, N = 333 };
    std::vector<T> x(ROWS * N);
    for (int i = 0; i < ROWS * N; i++)
        x[(size_t)i] = (T)(i % 13);
    T *in = device_array<T>(ROWS * N), *out = device_array<T>(ROWS);
    copy_in(in, x.data(), ROWS * N);
    for (int threads = 32; threads <= 1024; threads *= 2) {
        LAUNCH(row_sums<T>, ROWS, (unsigned)threads, 0, out, in, N);
        std::vector<T> sums = copy_out(out, ROWS);
        for (int row = 0; row < ROWS; row++) {
            T sum = 0;
            for (int i = 0; i < N; i++)
                sum += x[(size_t)(row * N + i)];
            CHECK(sums[(size_t)row] == sum);
        }
    }
    cudaFree(in);
    cudaFree(out);
}

/* The results of all shuffles, 8 per lane. */
__global__ void shuffles(int *out)
{
    const int lane = (int)threadIdx.x % 32;
    int *mine = out + threadIdx.x * 8;
    mine[0] = __shfl_sync(0xffffffffu, lane, 5);
    mine[1] = __shfl_sync(0xffffffffu, lane, 3, 8);
    mine[2] = __shfl_up_sync(0xffffffffu, lane, 2);
    mine[3] = __shfl_down_sync(0xffffffffu, lane, 3, 16);
    mine[4] = (int)__shfl_xor_sync(0xffffffffu, (double)lane, 9);
    mine[5] = (int)__ballot_sync(0xffffffffu, lane % 3 == 0);
    mine[6] = __any_sync(0xffffffffu, lane == 31) + 2 * __all_sync(0xffffffffu, lane < 31);
    if (lane < 16) /* half a warp by itself */
        mine[7] = __shfl_sync(0xffffu, lane, 15 - lane);
    else
        mine[7] = __shfl_sync(0xffff0000u, lane, 47 - lane);
    __syncwarp();
}

static void check_shuffles(void)
{
    enum { THREADS = 96 };
    int *device = device_array<int>(THREADS * 8);
    LAUNCH(shuffles, 1, THREADS, 0, device);
    std::vector<int> out = copy_out(device, THREADS * 8);
    unsigned thirds = 0;
    for (int lane = 0; lane < 32; lane += 3)
        thirds |= 1u << lane;
    for (int t = 0; t < THREADS; t++) {
        const int lane = t % 32, *mine = &out[(size_t)t * 8];
        CHECK(mine[0] == 5);
        CHECK(mine[1] == lane / 8 * 8 + 3);
        CHECK(mine[2] == (lane < 2 ? lane : lane - 2));
        CHECK(mine[3] == (lane % 16 + 3 > 15 ? lane : lane + 3));
        CHECK(mine[4] == (lane ^ 9));
        CHECK((unsigned)mine[5] == thirds);
        CHECK(mine[6] == 1);
        CHECK(mine[7] == (lane < 16 ? 15 - lane : 47 - lane));
    }
    cudaFree(device);
}

/* Three dimensions, dynamic shared memory, a barrier with a count, an incomplete warp. */
__global__ void everywhere(int *out)
{
    DYNAMIC_SHARED(int, turned);
    const int threads = (int)(blockDim.x * blockDim.y * blockDim.z);
    const int t = (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
    const int block = (int)(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
    turned[t] = t;
    const int odd = __syncthreads_count(t % 2);
    out[block * threads + t] = turned[threads - 1 - t] + 1000 * block + 1000000 * odd;
}

static void check_everywhere(void)
{
    const dim3 grid(3, 2, 4), block(5, 3, 3);
    enum { BLOCKS = 24, THREADS = 45 };
    int *device = device_array<int>(BLOCKS * THREADS);
    LAUNCH(everywhere, grid, block, THREADS * sizeof(int), device);
    std::vector<int> out = copy_out(device, BLOCKS * THREADS);
    for (int i = 0; i < BLOCKS * THREADS; i++)
        CHECK(out[(size_t)i] ==
              THREADS - 1 - i % THREADS + 1000 * (i / THREADS) + 1000000 * (THREADS / 2));
    cudaFree(device);
}

/* Shared memory is NaN when a block starts, device memory when it is allocated. */
__global__ void uninitialized(float *out, const float *fresh)
{
    __shared__ float shared[32];
    DYNAMIC_SHARED(float, dynamic);
    out[blockIdx.x * 3] = shared[threadIdx.x];
    out[blockIdx.x * 3 + 1] = dynamic[threadIdx.x];
    out[blockIdx.x * 3 + 2] = *fresh;
    __syncthreads();
    shared[threadIdx.x] = dynamic[threadIdx.x] = 1;
}

static void check_uninitialized(void)
{
    float *out = device_array<float>(30), *fresh = device_array<float>(1);
    LAUNCH(uninitialized, 10, 32, 32 * sizeof(float), out, fresh);
    for (float x : copy_out(out, 30))
        CHECK(isnan(x));
    cudaFree(out);
    cudaFree(fresh);
}

__global__ void add(float *x, float by, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        x[i] += by;
}

/* ------------------------------------------------------------------------------------ launching */
/* The error of a launch, or cudaSuccess. */
static cudaError_t launch_error(unsigned grid, unsigned block, size_t shared, cudaStream_t stream)
{
    cuda_host_kernel("add", add, grid, block, shared, stream)(nullptr, 1, 0);
    return cudaGetLastError();
}

/* A warp's product of a [16, 16] and b [16, 8], with the fragments of PTX's documentation; then
 * four matrices [8, 8] loaded from shared memory, as they are and transposed. */
__global__ void tensor_core(float *product, uint32_t *loaded, const float *a, const float *b)
{
    __shared__ __align__(16) uint16_t rows[32][8];
    const int lane = (int)threadIdx.x, g = lane / 4, t = lane % 4;
    uint32_t a_registers[4], b_registers[2];
    for (int i = 0; i < 4; i++) {
        const float *at = a + (g + i % 2 * 8) * 16 + 2 * t + i / 2 * 8;
        a_registers[i] = pack_bf16(at[0], at[1]);
    }
    for (int i = 0; i < 2; i++) {
        const float *at = b + (2 * t + 8 * i) * 8 + g;
        b_registers[i] = pack_bf16(at[0], at[8]);
    }
    float sum[4] = { 1, 1, 1, 1 };
    mma_bf16(sum, a_registers, b_registers);
    for (int i = 0; i < 4; i++)
        product[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];

    for (int i = 0; i < 8; i++)
        rows[lane][i] = (uint16_t)(100 * lane + i);
    __syncwarp();
    load_matrices(loaded + 8 * lane, rows[lane]);
    load_transposed(loaded + 8 * lane + 4, rows[lane]);
}

static void check_tensor_core(void)
{
    std::vector<float> a(256), b(128);
    for (size_t i = 0; i < a.size(); i++)
        a[i] = (float)(i * 7 % 31) - 11;
    for (size_t i = 0; i < b.size(); i++)
        b[i] = (float)(i * 5 % 23) - 7;
    float *da = device_array<float>(256), *db = device_array<float>(128);
    float *product = device_array<float>(128);
    uint32_t *loaded = device_array<uint32_t>(256);
    copy_in(da, a.data(), 256);
    copy_in(db, b.data(), 128);
    LAUNCH(tensor_core, 1, 32, 0, product, loaded, da, db);
    const std::vector<float> got = copy_out(product, 128);
    for (size_t row = 0; row < 16; row++)
        for (size_t column = 0; column < 8; column++) {
            float sum = 1;
            for (size_t k = 0; k < 16; k++)
                sum += a[row * 16 + k] * b[k * 8 + column];
            CHECK(got[row * 8 + column] == sum);
        }
    const std::vector<uint32_t> matrices = copy_out(loaded, 256);
    for (size_t lane = 0; lane < 32; lane++)
        for (size_t i = 0; i < 4; i++) {
            const size_t g = lane / 4, t = lane % 4;
            const uint32_t as_is = (uint32_t)(100 * (8 * i + g) + 2 * t);
            const uint32_t turned = (uint32_t)(100 * (8 * i + 2 * t) + g);
            CHECK(matrices[8 * lane + i] == (as_is | (as_is + 1) << 16));
            CHECK(matrices[8 * lane + 4 + i] == (turned | (turned + 100) << 16));
        }
    for (void *memory : { (void *)da, (void *)db, (void *)product, (void *)loaded })
        cudaFree(memory);
    CHECK(pack_bf16(1.00390625f, -1.01171875f) == 0xbf823f80); /* ties to even */
}

static void check_launches(void)
{
    cudaStream_t stream = cuda_stream();
    CHECK(launch_error(1, 1024, 48 << 10, stream) == cudaSuccess);
    CHECK(launch_error(0, 32, 0, stream) == cudaErrorInvalidConfiguration);
    CHECK(launch_error(1, 0, 0, stream) == cudaErrorInvalidConfiguration);
    CHECK(launch_error(1, 1025, 0, stream) == cudaErrorInvalidConfiguration);
    CHECK(launch_error(1, 32, (48 << 10) + 1, stream) == cudaErrorInvalidValue);
    CHECK(cudaFuncSetAttribute(add, cudaFuncAttributeMaxDynamicSharedMemorySize, (227 << 10) + 1) ==
          cudaErrorInvalidValue);
    CHECK(cudaFuncSetAttribute(add, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10) ==
          cudaSuccess);
    cudaGetLastError();
    CHECK(launch_error(1, 32, 227 << 10, stream) == cudaSuccess);
    cudaSetDevice(1);
    CHECK(launch_error(1, 32, 0, stream) == cudaErrorInvalidResourceHandle);
    CHECK(launch_error(1, 32, 0, nullptr) == cudaSuccess);
    cudaSetDevice(0);
    CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
    CHECK(cudaPeekAtLastError() == cudaErrorInvalidDevice);
    CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
    CHECK(cudaGetLastError() == cudaSuccess);
}

/* --------------------------------------------------------------------------------------- memory */
static void check_memory(void)
{
    size_t free_before, free_after, total;
    CHECK(cudaMemGetInfo(&free_before, &total) == cudaSuccess);
    void *memory = nullptr;
    CHECK(cudaMalloc(&memory, total + 1) == cudaErrorMemoryAllocation && !memory);
    CHECK(cudaMalloc(&memory, 1000) == cudaSuccess && (uintptr_t)memory % 256 == 0);
    CHECK(cudaMemGetInfo(&free_after, &total) == cudaSuccess);
    CHECK(free_before - free_after == 1000);
    char host[1001] = "";
    CHECK(cudaMemcpy(memory, host, 1001, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(memory, host, 1000, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(memory, memory, 0, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(cudaMemcpy(memory, host, 1000, cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(cudaMemset(host, 0, 1000) == cudaErrorInvalidValue);
    CHECK(cudaFree(host) == cudaErrorInvalidValue);
    CHECK(cudaFreeHost(memory) == cudaErrorInvalidValue);
    CHECK(cudaFree(memory) == cudaSuccess);
    CHECK(cudaFree(nullptr) == cudaSuccess);
    CHECK(strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
    cudaGetLastError();
}

/* ------------------------------------------------------------------------------------- captures */
static cudaGraphExec_t capture_adding(float *x, float *pinned, float by)
{
    cudaStream_t stream = cuda_stream();
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) == cudaSuccess);
    cudaStreamCaptureStatus status;
    CHECK(cudaStreamIsCapturing(stream, &status) == cudaSuccess);
    CHECK(status == cudaStreamCaptureStatusActive);
    CHECK(cudaMemcpyAsync(x, pinned, sizeof *x, cudaMemcpyHostToDevice, stream) == cudaSuccess);
    LAUNCH(add, 1, 32, 0, x, by, 1);
    CHECK(cudaMemcpyAsync(pinned, x, sizeof *x, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    CHECK(cudaMemsetAsync(x, 0, sizeof *x, stream) == cudaSuccess);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    static const cudaGraphNodeType types[] = { cudaGraphNodeTypeMemcpy, cudaGraphNodeTypeKernel,
                                               cudaGraphNodeTypeMemcpy, cudaGraphNodeTypeMemset };
    size_t count = 0;
    cudaGraphNode_t nodes[4];
    CHECK(cudaGraphGetNodes(graph, nullptr, &count) == cudaSuccess && count == 4);
    CHECK(cudaGraphGetNodes(graph, nodes, &count) == cudaSuccess);
    for (int i = 0; i < 4; i++) {
        cudaGraphNodeType type;
        CHECK(cudaGraphNodeGetType(nodes[i], &type) == cudaSuccess && type == types[i]);
    }
    CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    return exec;
}

static void check_replays(void)
{
    float *x = device_array<float>(1), *pinned = nullptr;
    CHECK(cudaMallocHost(&pinned, sizeof *pinned) == cudaSuccess);
    *pinned = 1;
    cudaGraphExec_t exec = capture_adding(x, pinned, 10);
    CHECK(*pinned == 1); /* recorded, not done */
    for (int replay = 1; replay <= 3; replay++) {
        CHECK(cudaGraphLaunch(exec, cuda_stream()) == cudaSuccess);
        CHECK(cudaStreamSynchronize(cuda_stream()) == cudaSuccess);
        CHECK(*pinned == 1 + 10 * (float)replay);
    }
    CHECK(copy_out(x, 1)[0] == 0);
    CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
    cudaFree(x);
    cudaFreeHost(pinned);
}

/* Whether a call has failed and invalidated the capture. */
static bool invalidates(cudaError_t error)
{
    cudaGraph_t graph;
    const bool ended =
        cudaStreamEndCapture(cuda_stream(), &graph) == cudaErrorStreamCaptureInvalidated && !graph;
    cudaGetLastError();
    return error != cudaSuccess && ended;
}

static void check_captures(void)
{
    cudaStream_t stream = cuda_stream();
    float *x = device_array<float>(1), host = 0;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) == cudaErrorIllegalState);
    CHECK(invalidates(cudaStreamSynchronize(stream)));
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    CHECK(invalidates(cudaDeviceSynchronize()));
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    CHECK(invalidates(cudaMemcpyAsync(&host, x, sizeof host, cudaMemcpyDeviceToHost, stream)));
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    void *memory;
    CHECK(invalidates(cudaMalloc(&memory, 4)));
    cudaEvent_t event;
    cudaEventCreate(&event);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    CHECK(cudaMalloc(&memory, 4) == cudaSuccess && cudaFree(memory) == cudaSuccess);
    CHECK(cudaEventRecord(event, stream) == cudaSuccess);
    CHECK(invalidates(cudaEventSynchronize(event)));
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    cudaStreamSynchronize(stream);
    CHECK(launch_error(1, 1, 0, stream) == cudaErrorStreamCaptureInvalidated);
    CHECK(invalidates(cudaErrorStreamCaptureInvalidated));
    CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed) ==
          cudaErrorStreamCaptureUnsupported);
    cudaGetLastError();
    cudaEventDestroy(event);
    cudaFree(x);
}

/* After a kernel's fault every call returns its error, and reading it does not clear it. */
static void check_fault(void)
{
    float *x = device_array<float>(1);
    void *memory;
    setenv("TAPEGRAD_CUDA_ON_HOST_FAULT", "719", 1);
    CHECK(launch_error(1, 1, 0, cuda_stream()) == cudaErrorLaunchFailure);
    CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
    CHECK(cudaSetDevice(0) == cudaErrorLaunchFailure);
    CHECK(cudaMalloc(&memory, 4) == cudaErrorLaunchFailure);
    CHECK(cudaFree(x) == cudaErrorLaunchFailure);
    CHECK(cudaStreamSynchronize(cuda_stream()) == cudaErrorLaunchFailure);
    unsetenv("TAPEGRAD_CUDA_ON_HOST_FAULT");
    cudaGetLastError();
}

static void check_events(void)
{
    cudaEvent_t start, end;
    float milliseconds = -1;
    cudaEventCreate(&start);
    cudaEventCreate(&end);
    CHECK(cudaEventElapsedTime(&milliseconds, start, end) == cudaErrorInvalidResourceHandle);
    CHECK(cudaEventRecord(start, cuda_stream()) == cudaSuccess);
    CHECK(cudaEventRecord(end, cuda_stream()) == cudaSuccess);
    CHECK(cudaEventSynchronize(end) == cudaSuccess && cudaEventQuery(end) == cudaSuccess);
    CHECK(cudaEventElapsedTime(&milliseconds, start, end) == cudaSuccess && milliseconds >= 0);
    cudaEventDestroy(start);
    cudaEventDestroy(end);
    cudaGetLastError();
}

/* -------------------------------------------------------------------------------------- threads */
static void add_often(float *x, int times)
{
    cudaStream_t stream;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    for (int i = 0; i < times; i++)
        cuda_host_kernel("add", add, 2, 64, 0, stream)(x, 1, 100);
    cudaStreamDestroy(stream);
}

static void check_threads(void)
{
    enum { THREADS = 4, TIMES = 50 };
    float *x[THREADS];
    std::thread threads[THREADS];
    for (int t = 0; t < THREADS; t++) {
        x[t] = device_array<float>(100);
        cudaMemset(x[t], 0, 100 * sizeof *x[t]);
        threads[t] = std::thread(add_often, x[t], TIMES);
    }
    for (int t = 0; t < THREADS; t++) {
        threads[t].join();
        for (float value : copy_out(x[t], 100))
            CHECK(value == TIMES);
        cudaFree(x[t]);
    }
}

static void check_no_device(void)
{
    int count = -1;
    void *memory;
    CHECK(cudaGetDeviceCount(&count) == cudaErrorNoDevice && count == 0);
    CHECK(cudaSetDevice(0) == cudaErrorNoDevice);
    CHECK(cudaMalloc(&memory, 1) == cudaErrorNoDevice);
    CHECK(strcmp(cudaGetErrorString(cudaGetLastError()), "no CUDA-capable device is detected") ==
          0);
}

int main(int count, char **arguments)
{
    if (count > 1 && strcmp(arguments[1], "no-device") == 0) {
        check_no_device();
        return checked();
    }
    check_sums<float>();
    check_sums<double>();
    check_shuffles();
    check_everywhere();
    check_tensor_core();
    check_uninitialized();
    check_launches();
    check_memory();
    check_replays();
    check_captures();
    check_fault();
    check_events();
    check_threads();
    cudaStreamDestroy(cuda_stream());
    return checked();
}
