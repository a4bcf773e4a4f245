#include "ops/causal_linear_attention.h"
#include "ops/linear_attention.cuh"

extern "C" int64_t causal_linear_attention_scratch_cuda(const Attention *a, bool backward)
{
    return scan_scratch(a, true, backward);
}

extern "C" void causal_linear_attention_forward_cuda(Real *out, Real *den, Real *scratch,
                                                     const Attention *a, Real eps)
{
    BY_STORAGE(T, linear_attention_forward<T, true>(out, den, scratch, a, eps));
}

extern "C" void causal_linear_attention_backward_cuda(AttentionGradient d, const Real *dout,
                                                      const Real *out, const Real *den,
                                                      Real *scratch, const Attention *a)
{
    BY_STORAGE(T, linear_attention_backward<T, true>(d, dout, out, den, scratch, a));
}
