/* The library's Philox draws what cuRAND's generator draws: computed on the host, and on the GPU
 * where there is one. */
#define QUALIFIERS static __forceinline__ __host__ __device__
#include <curand_philox4x32_x.h>
#include <stdio.h>

#include "tensor/philox.h"

enum { DRAWS = 4096 };

/* Counts the differing words of a draw far from the others. */
static __host__ __device__ int differences(uint64_t i)
{
    const uint64_t seed = i * 0x9e3779b97f4a7c15u, stream = seed ^ (i << 40), counter = ~seed + i;
    const uint4 at = { (unsigned)counter, (unsigned)(counter >> 32), (unsigned)stream,
                       (unsigned)(stream >> 32) };
    const uint2 key = { (unsigned)seed, (unsigned)(seed >> 32) };
    const uint4 theirs = curand_Philox4x32_10(at, key);
    const Philox ours = philox(seed, stream, counter);
    return (ours.word[0] != theirs.x) + (ours.word[1] != theirs.y) + (ours.word[2] != theirs.z) +
           (ours.word[3] != theirs.w);
}

__global__ void compare(int *result)
{
    result[threadIdx.x] = 0;
    for (int i = threadIdx.x; i < DRAWS; i += blockDim.x)
        result[threadIdx.x] += differences(i);
}

static int failures, checks;

static void check(const char *where, int different)
{
    checks++;
    failures += different != 0;
    if (different)
        printf("on the %s %d of %d words differ from cuRAND's\n", where, different, 4 * DRAWS);
}

int main(void)
{
    int different = 0, count = 0;
    for (int i = 0; i < DRAWS; i++)
        different += differences(i);
    check("host", different);
    if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) {
        enum { THREADS = 64 };
        int *result, host[THREADS];
        bool good = cudaMalloc(&result, sizeof host) == cudaSuccess;
        compare<<<1, THREADS>>>(result);
        good = good && cudaMemcpy(host, result, sizeof host, cudaMemcpyDeviceToHost) == cudaSuccess;
        different = good ? 0 : 4 * DRAWS;
        for (int i = 0; good && i < THREADS; i++)
            different += host[i];
        check("GPU", different);
    }
    printf("%d%%: Checks: %d, Failures: %d, Errors: 0\n", 100 * (checks - failures) / checks,
           checks, failures);
    return failures > 0;
}
