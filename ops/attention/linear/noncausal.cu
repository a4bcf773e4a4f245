#include "ops/attention/linear/noncausal.h"
#include "ops/attention/linear/tiles_launch.cuh"

extern "C" int64_t linear_attention_scratch_cuda(TensorType type, const LinearScan *s)
{
    return scan_scratch(type, s, false, true);
}

extern "C" void linear_attention_forward_cuda(TensorType type, Real *out, Real *den, Real *scratch,
                                              const LinearScan *s)
{
    const ScanPlan p = plan_scans(type, s, false, false, false);
    typedef TileKernels<32, false> Narrow;
    typedef TileKernels<WIDEST, false> Wide;
    if (p.size == 32)
        BY_STORAGE(type, T, forward_by<Narrow, T>(out, den, NULL, scratch, p, s));
    else
        BY_STORAGE(type, T, forward_by<Wide, T>(out, den, NULL, scratch, p, s));
}

extern "C" void linear_attention_backward_cuda(TensorType type, AttentionGradient d,
                                               const Real *dout, const Real *out, const Real *den,
                                               Real *scratch, const LinearScan *s)
{
    const ScanPlan p = plan_scans(type, s, false, true, false);
    const LinearScanGradient all = { d, { NULL, false } };
    typedef TileKernels<32, false> Narrow;
    typedef TileKernels<WIDEST, false> Wide;
    if (p.size == 32)
        BY_STORAGE(type, T,
                   backward_by<Narrow, T, false>(all, dout, NULL, out, den, scratch, p, s));
    else
        BY_STORAGE(type, T, backward_by<Wide, T, false>(all, dout, NULL, out, den, scratch, p, s));
}
