#include "ops/causal_linear_attention.h"
#include "ops/linear_attention.cuh"

/* Runs the statement with K as the plan's kernels. */
#define BY_KERNELS(K, p, ...)                                                                      \
    do {                                                                                           \
        if ((p).kind == SCAN_WALK) {                                                               \
            typedef WalkKernels K;                                                                 \
            __VA_ARGS__;                                                                           \
        } else if ((p).kind == SCAN_MMA) {                                                         \
            BY_MMA_KERNELS(K, p, __VA_ARGS__);                                                     \
        } else {                                                                                   \
            typedef TileKernels<WIDEST, true> K;                                                   \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

#ifndef TAPEGRAD_DOUBLE
#define BY_MMA_KERNELS(K, p, ...)                                                                  \
    if ((p).size == 32) {                                                                          \
        typedef MmaKernels<32> K;                                                                  \
        __VA_ARGS__;                                                                               \
    } else if ((p).size == 64) {                                                                   \
        typedef MmaKernels<64> K;                                                                  \
        __VA_ARGS__;                                                                               \
    } else {                                                                                       \
        typedef MmaKernels<128> K;                                                                 \
        __VA_ARGS__;                                                                               \
    }
#else
#define BY_MMA_KERNELS(K, p, ...) /* none */
#endif

extern "C" int64_t causal_linear_attention_scratch_cuda(const LinearScan *s, bool backward)
{
    return scan_scratch(s, true, backward);
}

extern "C" void causal_linear_attention_forward_cuda(Real *out, Real *den, Real *final_state,
                                                     Real *scratch, const LinearScan *s)
{
    const ScanPlan p = plan_scans(s, true, false, final_state);
    BY_KERNELS(K, p, BY_STORAGE(T, forward_by<K, T>(out, den, final_state, scratch, p, s)));
}

extern "C" void causal_linear_attention_backward_cuda(LinearScanGradient d, const Real *dout,
                                                      const Real *dfinal_state, const Real *out,
                                                      const Real *den, Real *scratch,
                                                      const LinearScan *s)
{
    const ScanPlan p = plan_scans(s, true, true, d.state.data);
    BY_KERNELS(
        K, p,
        BY_STORAGE(T, backward_by<K, T, true>(d, dout, dfinal_state, out, den, scratch, p, s)));
}
