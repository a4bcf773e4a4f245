/* Sorting on a GPU without atomics. All keys are different, so the sorted order is unique. */
#ifndef TAPEGRAD_OPS_CUDA_SHARED_SORT_CUH
#define TAPEGRAD_OPS_CUDA_SHARED_SORT_CUH

#include "tensor/cuda/kernel.cuh"

typedef uint64_t Key;    /* 2^32 * sort value + source index */
#define NO_KEY (~(Key)0) /* sorts last */

/* Bitonic sort (Batcher 1968) of count keys in shared memory by count / 2 threads; count is a power
 * of two. */
__device__ static inline void sort_in_block(Key *key, int count)
{
    for (int size = 2; size <= count; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            const int i = 2 * threadIdx.x - (threadIdx.x & (step - 1));
            const Key a = key[i], b = key[i + step];
            if ((a > b) == ((i & size) == 0)) {
                key[i] = b;
                key[i + step] = a;
            }
        }
    __syncthreads();
}

/* Binary search: the number of keys below `key` among count ascending keys. */
__device__ static inline int64_t count_below(const Key *keys, int64_t count, Key key)
{
    int64_t low = 0;
    while (low < count) {
        const int64_t middle = (low + count) / 2;
        if (keys[middle] < key)
            low = middle + 1;
        else
            count = middle;
    }
    return low;
}

#endif
