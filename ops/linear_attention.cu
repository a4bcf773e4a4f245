#include "ops/linear_attention.cuh"
#include "ops/linear_attention.h"

extern "C" int64_t linear_attention_scratch_cuda(const Attention *a)
{
    return scan_scratch(a, false, true);
}

extern "C" void linear_attention_forward_cuda(Real *out, Real *den, Real *scratch,
                                              const Attention *a, Real eps)
{
    BY_STORAGE(T, linear_attention_forward<T, false>(out, den, scratch, a, eps));
}

extern "C" void linear_attention_backward_cuda(AttentionGradient d, const Real *dout,
                                               const Real *out, const Real *den, Real *scratch,
                                               const Attention *a)
{
    BY_STORAGE(T, linear_attention_backward<T, false>(d, dout, out, den, scratch, a));
}
