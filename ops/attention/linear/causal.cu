#include "ops/attention/linear/causal.h"
#include "ops/attention/linear/tiles_launch.cuh"

/* Runs the statement with K as the plan's kernels, for plans without tensor cores. */
#define BY_KERNELS(K, p, ...)                                                                      \
    do {                                                                                           \
        if ((p).kind == SCAN_WALK) {                                                               \
            typedef WalkKernels K;                                                                 \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            typedef TileKernels<WIDEST, true> K;                                                   \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

extern "C" int64_t causal_linear_attention_scratch_cuda(TensorType type, const LinearScan *s,
                                                        bool backward)
{
    return kind_of(type, s, true) == SCAN_MMA ? causal_mma_scratch(type, s, backward)
                                              : scan_scratch(type, s, true, backward);
}

extern "C" void causal_linear_attention_forward_cuda(TensorType type, Real *out, Real *den,
                                                     Real *final_state, Real *scratch,
                                                     const LinearScan *s)
{
    const ScanPlan p = plan_scans(type, s, true, false, final_state);
    if (p.kind == SCAN_MMA)
        causal_mma_forward(type, out, den, final_state, scratch, s);
    else
        BY_KERNELS(K, p,
                   BY_STORAGE(type, T, forward_by<K, T>(out, den, final_state, scratch, p, s)));
}

extern "C" void causal_linear_attention_backward_cuda(TensorType type, LinearScanGradient d,
                                                      const Real *dout, const Real *dfinal_state,
                                                      const Real *out, const Real *den,
                                                      Real *scratch, const LinearScan *s)
{
    const ScanPlan p = plan_scans(type, s, true, true, d.state.data);
    if (p.kind == SCAN_MMA)
        causal_mma_backward(type, d, dout, dfinal_state, out, den, scratch, s);
    else
        BY_KERNELS(
            K, p,
            BY_STORAGE(type, T,
                       backward_by<K, T, true>(d, dout, dfinal_state, out, den, scratch, p, s)));
}
