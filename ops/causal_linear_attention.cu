#include "ops/causal_linear_attention.h"
#include "ops/linear_attention.cuh"

extern "C" int64_t causal_linear_attention_scratch_cuda(const LinearScan *s, bool backward)
{
    return scan_scratch(&s->x, true, backward);
}

extern "C" void causal_linear_attention_forward_cuda(Real *out, Real *den, Real *final_state,
                                                     Real *scratch, const LinearScan *s)
{
    (void)final_state;
    BY_STORAGE(T, linear_attention_forward<T, true>(out, den, scratch, &s->x, s->eps));
}

extern "C" void causal_linear_attention_backward_cuda(LinearScanGradient d, const Real *dout,
                                                      const Real *dfinal_state, const Real *out,
                                                      const Real *den, Real *scratch,
                                                      const LinearScan *s)
{
    (void)dfinal_state;
    BY_STORAGE(T, linear_attention_backward<T, true>(d.x, dout, out, den, scratch, &s->x));
}
