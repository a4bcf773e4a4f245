#include "ops/cuda/elementwise/dropout.cuh"
#include "ops/cuda/shared/map.cuh"
#include "ops/kernels.h"

/* One thread per Philox block, that is, four elements; with `packs` in one load and one store. */
template <typename T>
__global__ void dropout_kernel(T *out, bool accumulate, const T *x, DropoutDraw d, bool packs,
                               int64_t n)
{
    GRID_FOR(block, (n + 3) / 4) {
        const unsigned kept = draw_kept(d, block);
        const int64_t first = 4 * block;
        if (packs && first + 4 <= n) {
            Reals<4> value = load_pack<4>(&x[first]);
            for (int k = 0; k < 4; k++)
                value.value[k] = dropped(d, kept, k, value.value[k]);
            contribute_pack<4>(&out[first], accumulate, value);
        } else {
            for (int k = 0; k < 4 && first + k < n; k++)
                contribute(&out[first + k], accumulate, dropped(d, kept, k, load(&x[first + k])));
        }
    }
}

extern "C" void dropout_cuda(TensorType type, Gradient out, const Real *x, DropoutDraw d, int64_t n)
{
    BY_STORAGE(type, T,
               LAUNCH(dropout_kernel<T>, blocks_for((n + 3) / 4), THREADS, 0, (T *)out.data,
                      out.accumulate, (const T *)x, d,
                      packs_fit<4>((T *)out.data) && packs_fit<4>((const T *)x), n));
}
