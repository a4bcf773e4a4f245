#include "ops/dropout.h"
#include "ops/map.cuh"

/* A thread takes the four numbers of a block of the generator, at once where `packs`. */
template <typename T>
__global__ void dropout_kernel(T *out, bool accumulate, const T *x, Dropout d, bool packs,
                               int64_t n)
{
    const uint64_t counter = d.random.counter + (d.start ? *d.start : 0);
    GRID_FOR(block, (n + 3) / 4) {
        const Philox drawn = philox(d.random.seed, d.random.stream, counter + (uint64_t)block);
        const int64_t first = 4 * block;
        if (packs && first + 4 <= n) {
            Reals<4> value = load_pack<4>(&x[first]);
            for (int k = 0; k < 4; k++)
                value.number[k] = drawn.word[k] >> 8 >= d.limit ? d.scale * value.number[k] : 0;
            contribute_pack<4>(&out[first], accumulate, value);
        } else {
            for (int k = 0; k < 4 && first + k < n; k++)
                contribute(&out[first + k], accumulate,
                           drawn.word[k] >> 8 >= d.limit ? d.scale * load(&x[first + k]) : 0);
        }
    }
}

extern "C" void dropout_cuda(Real *out, bool accumulate, const Real *x, Dropout d, int64_t n)
{
    BY_STORAGE(T,
               LAUNCH(dropout_kernel<T>, blocks_for((n + 3) / 4), THREADS, 0, (T *)out, accumulate,
                      (const T *)x, d, packs_fit<4>((T *)out) && packs_fit<4>((const T *)x), n));
}
