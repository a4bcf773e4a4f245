#include "ops/attention/linear/noncausal.h"
#include "ops/attention/linear/tiles_launch.cuh"

extern "C" int64_t linear_attention_scratch_cuda(const LinearScan *s)
{
    return scan_scratch(s, false, true);
}

extern "C" void linear_attention_forward_cuda(Real *out, Real *den, Real *scratch,
                                              const LinearScan *s)
{
    const ScanPlan p = plan_scans(s, false, false, false);
    typedef TileKernels<32, false> Narrow;
    typedef TileKernels<WIDEST, false> Wide;
    if (p.size == 32)
        BY_STORAGE(T, forward_by<Narrow, T>(out, den, NULL, scratch, p, s));
    else
        BY_STORAGE(T, forward_by<Wide, T>(out, den, NULL, scratch, p, s));
}

extern "C" void linear_attention_backward_cuda(AttentionGradient d, const Real *dout,
                                               const Real *out, const Real *den, Real *scratch,
                                               const LinearScan *s)
{
    const ScanPlan p = plan_scans(s, false, true, false);
    const LinearScanGradient all = { d, { NULL, false } };
    typedef TileKernels<32, false> Narrow;
    typedef TileKernels<WIDEST, false> Wide;
    if (p.size == 32)
        BY_STORAGE(T, backward_by<Narrow, T, false>(all, dout, NULL, out, den, scratch, p, s));
    else
        BY_STORAGE(T, backward_by<Wide, T, false>(all, dout, NULL, out, den, scratch, p, s));
}
