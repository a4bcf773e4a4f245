#include "ops/linear_attention.cuh"
#include "ops/linear_attention.h"

extern "C" int64_t linear_attention_scratch_cuda(const LinearScan *s)
{
    return scan_scratch(&s->x, false, true);
}

extern "C" void linear_attention_forward_cuda(Real *out, Real *den, Real *scratch,
                                              const LinearScan *s)
{
    BY_STORAGE(T, linear_attention_forward<T, false>(out, den, scratch, &s->x, s->eps));
}

extern "C" void linear_attention_backward_cuda(AttentionGradient d, const Real *dout,
                                               const Real *out, const Real *den, Real *scratch,
                                               const LinearScan *s)
{
    BY_STORAGE(T, linear_attention_backward<T, false>(d, dout, out, den, scratch, &s->x));
}
