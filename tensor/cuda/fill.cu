/* tensor_fill on CUDA. */
#include "tensor/cuda/kernel.cuh"

template <typename T> __global__ void fill(T *out, Real value, int64_t n)
{
    GRID_FOR(i, n)
        store(&out[i], value);
}

extern "C" void fill_cuda(TensorType type, Real *out, Real value, int64_t n)
{
    BY_STORAGE(type, T, LAUNCH(fill<T>, blocks_for(n), THREADS, 0, (T *)out, value, n));
}
