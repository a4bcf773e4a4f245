#include "ops/attention/linear/kernels.h"
#include "ops/attention/linear/scan_tiles.cuh"

/* Runs the statement with SIZE as the tile size of these heads and T as their dtype. */
#define BY_SIZE_AND_TYPE(type, s, ...)                                                             \
    do {                                                                                           \
        if (tile_size((s)->x.D, (s)->x.M) == 32) {                                                 \
            enum { SIZE = 32 };                                                                    \
            BY_STORAGE(type, T, __VA_ARGS__);                                                      \
        } else {                                                                                   \
            enum { SIZE = WIDEST };                                                                \
            BY_STORAGE(type, T, __VA_ARGS__);                                                      \
        }                                                                                          \
    } while (0)

extern "C" int64_t linear_attention_scratch_cuda(TensorType, const LinearScan *s)
{
    return tile_size(s->x.D, s->x.M) == 32 ? scan_scratch<Real, 32, false>(s, true)
                                           : scan_scratch<Real, WIDEST, false>(s, true);
}

extern "C" void linear_attention_forward_cuda(TensorType type, Real *out, Real *den, Real *scratch,
                                              const LinearScan *s)
{
    BY_SIZE_AND_TYPE(type, s, (scan_forward<T, SIZE, false>(out, den, NULL, scratch, s)));
}

extern "C" void linear_attention_backward_cuda(TensorType type, AttentionGradient d,
                                               const Real *dout, const Real *out, const Real *den,
                                               Real *scratch, const LinearScan *s)
{
    const LinearScanGradient all = { d, { NULL, false } };
    BY_SIZE_AND_TYPE(type, s,
                     (scan_backward<T, SIZE, false>(all, dout, NULL, out, den, scratch, s)));
}
